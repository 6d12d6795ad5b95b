//! A language model of four letters: the next token is a hash of seed, choice, position and the
//! last token. And what an undisturbed run of it answers, worked out independently.

use std::sync::Arc;

use shared::ids::TokenId;
use shared::protocol::Sampling;
use strata_supervisor::event_loop::{NewRequest, TokenText, Vocabulary};
use strata_supervisor::session::log::Outcome;

use super::random::mix;
use super::worker::CONTEXT_LEN;

/// Token ids are below this.
pub(crate) const VOCAB_SIZE: u32 = 128;
/// Ends a sequence.
pub(crate) const END: TokenId = TokenId(0);
/// A prompt that begins with this harms the worker that reads it.
pub(crate) const POISON: TokenId = TokenId(1);

/// The one thing the model can do.
pub(crate) fn next_token(tokens: &[TokenId], sampling: &Sampling) -> TokenId {
    let last = u64::from(tokens.last().unwrap().0);
    let key = sampling.seed ^ (u64::from(sampling.choice) << 32) ^ (last << 40);
    let hash = mix(key ^ mix(tokens.len() as u64));
    if hash.is_multiple_of(61) {
        return END;
    }
    TokenId(u32::from(b'a') + u32::try_from((hash >> 8) % 4).unwrap())
}

/// What a choice of a request must answer.
pub(crate) fn expected(request: &NewRequest, choice: usize) -> (Vec<TokenId>, String, Outcome) {
    let n = request.choices.len();
    let mut tokens = request.prompts[choice / n].to_vec();
    // The choices of later prompts count on.
    let passed = u32::try_from(choice - choice % n).unwrap();
    let first = &request.choices[choice % n];
    let sampling = Sampling { choice: first.choice + passed, ..first.clone() };
    let start = tokens.len();
    let room = CONTEXT_LEN as usize - start;
    let limit = request.max_tokens.map_or(room, |max| room.min(max as usize));
    let mut text = String::new();
    let mut outcome = Outcome::Length;
    while tokens.len() - start < limit {
        let token = next_token(&tokens, &sampling);
        tokens.push(token);
        if token == END {
            if request.end_tokens {
                outcome = Outcome::Stop;
                break;
            }
            continue;
        }
        text.push(char::from_u32(token.0).unwrap());
        let hit = request.stops.iter().filter(|stop| text.ends_with(*stop)).max_by_key(|s| s.len());
        if let Some(stop) = hit {
            text.truncate(text.len() - stop.len());
            outcome = Outcome::StopString(stop.clone());
            break;
        }
    }
    (tokens.split_off(start), text, outcome)
}

/// The model's vocabulary.
#[derive(Debug)]
pub(crate) struct Letters;

impl Vocabulary for Letters {
    fn end_tokens(&self) -> &[TokenId] {
        &[END]
    }

    fn detokenizer(self: Arc<Self>) -> Box<dyn TokenText> {
        Box::new(Letter)
    }
}

struct Letter;

impl TokenText for Letter {
    fn push(&mut self, token: TokenId, out: &mut String) {
        out.extend(char::from_u32(token.0).filter(char::is_ascii_lowercase));
    }

    fn finish(&mut self, _out: &mut String) {}
}

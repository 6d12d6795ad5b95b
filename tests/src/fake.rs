//! What the fake worker does and what it says: the script of a life, and the rule of its tokens.
//!
//! The program is `src/bin/fake-worker.rs`; tests use this module to write scripts and to know
//! which text an undisturbed run gives.
//!
//! A script is a list of directives separated by `;`. A directive may be limited to some
//! incarnations: `1:die_at=40:KILL; 2-3:fail_load=11; token_ms=5`. See [`Directive`] for the words.

use std::ops::RangeInclusive;
use std::time::Duration;

use shared::ids::{Position, TokenId};
use shared::protocol::Sampling;

/// The environment variable that holds the script.
pub const SCRIPT_VARIABLE: &str = "STRATA_FAKE";

/// How a life ends when the script says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// By this signal, sent to itself.
    Signal(i32),
    /// By exit with this code.
    Exit(i32),
}

/// What goes wrong at a position of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// `die_at=POSITION:HOW`: dies before it sends that position. HOW is a signal or a code.
    Die(Death),
    /// `stall_at=POSITION`: neither computes nor answers from then on.
    Stall,
    /// `nonfinite_at=POSITION`: reports a non-finite value and leaves.
    NonFinite,
    /// `wrong_incarnation_at=POSITION`: also sends a token in the name of another life.
    WrongIncarnation,
    /// `gap_at=POSITION`: leaves that position out.
    Gap,
    /// `repeat_at=POSITION`: sends that position twice.
    Repeat,
    /// `torn_frame_at=POSITION`: sends half a frame and is killed.
    TornFrame,
    /// `garbage_at=POSITION`: sends a well-formed frame that is no message.
    Garbage,
    /// `huge_frame_at=POSITION`: announces a frame above the limit.
    HugeFrame,
    /// `unknown_session_at=POSITION`: also sends a token of a session that never was.
    UnknownSession,
    /// `bad_token_at=POSITION`: sends a token outside the vocabulary.
    BadToken,
    /// `flood_at=POSITION`: writes a megabyte without a line end to stderr.
    Flood,
}

/// One thing the fake worker is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directive {
    /// `load_ms=N`: loading takes this long, in ten steps.
    Load(Duration),
    /// `load_stall`: loading never ends.
    LoadStall,
    /// `fail_load=HOW`: dies half way through loading.
    FailLoad(Death),
    /// `chunk_ms=N`: each chunk of prefill takes this long.
    Chunk(Duration),
    /// `token_ms=N`: each round of decode takes this long.
    Token(Duration),
    /// `die_in_prefill=HOW`: dies after the first chunk of the first prompt.
    DieInPrefill(Death),
    /// `die_at_end=HOW`: dies after a session's last token, before `Ended`.
    DieAtEnd(Death),
    /// Something at a position.
    At(Position, Trouble),
    /// `ignore_leave`: goes on when told to leave.
    IgnoreLeave,
    /// `ignore_end`: goes on with a session that was ended.
    IgnoreEnd,
    /// `no_pong`: does not answer pings.
    NoPong,
    /// `overrun`: runs ahead without end.
    Overrun,
    /// `refuse`: refuses every submission.
    Refuse,
    /// `end_every=N`: on average every Nth token is an end token; 0 is never. Default 64.
    EndEvery(u64),
}

/// A directive and the lives it holds for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Scoped {
    lives: RangeInclusive<u64>,
    directive: Directive,
}

/// Everything the fake worker was told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script(Vec<Scoped>);

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    ///
    /// Names the directive that is not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
        parts.map(parse_scoped).collect::<Result<_, _>>().map(Self)
    }

    /// The directives for one life.
    #[must_use]
    pub fn for_life(&self, incarnation: u64) -> Vec<Directive> {
        let holds = self.0.iter().filter(|scoped| scoped.lives.contains(&incarnation));
        holds.map(|scoped| scoped.directive).collect()
    }
}

fn parse_scoped(text: &str) -> Result<Scoped, String> {
    let scope = text.split_once(':').filter(|(head, _)| {
        head.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') && !head.is_empty()
    });
    let (lives, rest) = match scope {
        None => (0..=u64::MAX, text),
        Some((head, rest)) => {
            let (low, high) = head.split_once('-').unwrap_or((head, head));
            (number(low)?..=if high.is_empty() { u64::MAX } else { number(high)? }, rest)
        }
    };
    let directive = parse_directive(rest.trim()).map_err(|why| format!("`{text}`: {why}"))?;
    Ok(Scoped { lives, directive })
}

fn parse_directive(text: &str) -> Result<Directive, String> {
    let (word, value) = text.split_once('=').unwrap_or((text, ""));
    let millis = || number(value).map(Duration::from_millis);
    Ok(match word {
        "load_ms" => Directive::Load(millis()?),
        "load_stall" => Directive::LoadStall,
        "fail_load" => Directive::FailLoad(death(value)?),
        "chunk_ms" => Directive::Chunk(millis()?),
        "token_ms" => Directive::Token(millis()?),
        "die_in_prefill" => Directive::DieInPrefill(death(value)?),
        "die_at_end" => Directive::DieAtEnd(death(value)?),
        "ignore_leave" => Directive::IgnoreLeave,
        "ignore_end" => Directive::IgnoreEnd,
        "no_pong" => Directive::NoPong,
        "overrun" => Directive::Overrun,
        "refuse" => Directive::Refuse,
        "end_every" => Directive::EndEvery(number(value)?),
        _ => return parse_trouble(word, value),
    })
}

fn parse_trouble(word: &str, value: &str) -> Result<Directive, String> {
    let (position, how) = value.split_once(':').unwrap_or((value, ""));
    let trouble = match word {
        "die_at" => Trouble::Die(death(how)?),
        "stall_at" => Trouble::Stall,
        "nonfinite_at" => Trouble::NonFinite,
        "wrong_incarnation_at" => Trouble::WrongIncarnation,
        "gap_at" => Trouble::Gap,
        "repeat_at" => Trouble::Repeat,
        "torn_frame_at" => Trouble::TornFrame,
        "garbage_at" => Trouble::Garbage,
        "huge_frame_at" => Trouble::HugeFrame,
        "unknown_session_at" => Trouble::UnknownSession,
        "bad_token_at" => Trouble::BadToken,
        "flood_at" => Trouble::Flood,
        _ => return Err("no such directive".to_owned()),
    };
    let position = u32::try_from(number(position)?).map_err(|error| error.to_string())?;
    Ok(Directive::At(Position(position), trouble))
}

fn death(text: &str) -> Result<Death, String> {
    if let Ok(code) = text.parse() {
        return Ok(Death::Exit(code));
    }
    let signal: nix::sys::signal::Signal = format!("SIG{text}")
        .parse()
        .map_err(|_| format!("`{text}` is neither an exit code nor a signal such as KILL"))?;
    Ok(Death::Signal(signal as i32))
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

/// The token the fake worker draws after `tokens`: a pure function of them and the sampling key,
/// so that a replay goes on exactly where the last life stopped. Greedy draws know no seed.
///
/// Ordinary tokens are the ids 32 to 126, which the tiny model (see [`crate::tiny_model`]) maps to
/// the ASCII characters of the same number.
#[must_use]
pub fn draw(
    tokens: &[TokenId],
    sampling: &Sampling,
    end_tokens: &[TokenId],
    end_every: u64,
) -> TokenId {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |value: u64| {
        hash = (hash ^ value).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^= hash >> 29;
    };
    for token in tokens {
        mix(u64::from(token.0));
    }
    if sampling.temperature > 0.0 {
        mix(sampling.seed);
        mix(u64::from(sampling.choice) + 1);
    }
    mix(tokens.len() as u64);
    if let Some(end) = end_tokens.first()
        && end_every > 0
        && (hash >> 20).is_multiple_of(end_every)
    {
        return *end;
    }
    let printable = u64::from(b'~' - b' ') + 1;
    let offset = u32::try_from((hash >> 33) % printable).expect("below the divisor");
    TokenId(u32::from(b' ') + offset)
}

#[cfg(test)]
mod tests {
    use super::{Death, Directive, Script, Trouble, draw};
    use shared::ids::{Position, TokenId};
    use shared::protocol::Sampling;
    use std::time::Duration;

    #[test]
    fn directives_hold_for_the_lives_they_name() {
        let script = Script::parse("1:die_at=40:KILL; 2-3:fail_load=11; 4-:no_pong; token_ms=5");
        let script = script.unwrap();
        let pace = Directive::Token(Duration::from_millis(5));
        let kill = Directive::At(Position(40), Trouble::Die(Death::Signal(9)));
        assert_eq!(script.for_life(1), [kill, pace]);
        assert_eq!(script.for_life(3), [Directive::FailLoad(Death::Exit(11)), pace]);
        assert_eq!(script.for_life(9), [Directive::NoPong, pace]);
    }

    #[test]
    fn a_script_that_is_not_understood_is_named() {
        for text in ["dance", "die_at=40:NEVER", "token_ms=soon", "x-2:no_pong"] {
            assert!(Script::parse(text).unwrap_err().contains(text), "{text}");
        }
    }

    #[test]
    fn draws_depend_on_history_and_key_only() {
        let history = [TokenId(1), TokenId(2)];
        let warm = Sampling { temperature: 0.8, seed: 3, ..Sampling::default() };
        let other = Sampling { seed: 4, ..warm.clone() };
        let greedy = Sampling { seed: 4, ..Sampling::default() };
        assert_eq!(draw(&history, &warm, &[], 0), draw(&history, &warm, &[], 0));
        assert_ne!(draw(&history, &warm, &[], 0), draw(&history, &other, &[], 0));
        assert_eq!(draw(&history, &greedy, &[], 0), draw(&history, &Sampling::default(), &[], 0));
    }
}

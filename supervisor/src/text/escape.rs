//! Keeps a user's text apart from the template's own marks while both are one string.
//!
//! Before rendering, every name of a control token inside a user's string is broken by a sentinel
//! after its first letter, so that it cannot be found in the rendered prompt. Afterwards the
//! sentinels are taken out again, from the stretches that are plain text.
//!
//! The sentinels are noncharacters, which no text needs. A user who types one anyway gets it
//! through: it is written as `QUOTE hex QUOTE`.

use std::borrow::Cow;
use std::collections::HashSet;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;

use super::TextError;
use super::vocabulary::{TokenKind, Vocabulary};

/// Separates the letters of a special token's name.
const BREAK: char = '\u{fdd0}';
/// Stands before and after the code of a character that must not appear.
const QUOTE: char = '\u{fdd1}';

/// Letters of a name looked at in parts. No known name is longer; a hostile one costs no more.
const NAME_PARTS_MAX: usize = 64;

/// Breaks special names in a user's text, and mends them.
#[derive(Debug)]
pub(super) struct Escape {
    names: Vec<Box<str>>,
    finder: Option<AhoCorasick>,
    /// Beginnings and ends of the names, each a proper part and more than letters and digits.
    heads: HashSet<Box<str>>,
    tails: HashSet<Box<str>>,
    part_bytes_max: usize,
}

impl Escape {
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<Self, TextError> {
        let names: Vec<Box<str>> = vocabulary
            .tokens
            .iter()
            .zip(&vocabulary.kinds)
            .filter(|(name, kind)| {
                !name.is_empty() && matches!(kind, TokenKind::Control | TokenKind::Unknown)
            })
            .map(|(name, _)| name.as_str().into())
            .collect();
        Self::for_names(names)
    }

    fn for_names(names: Vec<Box<str>>) -> Result<Self, TextError> {
        let patterns = names.iter().map(|name| name.as_bytes());
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(patterns)
            .map_err(|error| {
                TextError::Invalid(format!("the control tokens cannot be searched for: {error}"))
            })?;
        let finder = (!names.is_empty()).then_some(finder);
        let mut heads: HashSet<Box<str>> = HashSet::new();
        let mut tails: HashSet<Box<str>> = HashSet::new();
        for name in &names {
            for (at, _) in name.char_indices().skip(1).take(NAME_PARTS_MAX) {
                let (head, tail) = name.split_at(at);
                heads.extend(marks(head).then(|| Box::from(head)));
                tails.extend(marks(tail).then(|| Box::from(tail)));
            }
        }
        let part_bytes_max = heads.iter().chain(&tails).map(|part| part.len()).max().unwrap_or(0);
        Ok(Self { names, finder, heads, tails, part_bytes_max })
    }

    /// A user's text in which no special name can be found.
    pub(super) fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let breaks = self.breaks(text);
        if breaks.is_empty() && !text.contains([BREAK, QUOTE]) {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len() + breaks.len() * BREAK.len_utf8() + 8);
        let mut breaks = breaks.into_iter().peekable();
        for (at, letter) in text.char_indices() {
            let mut is_quoted = matches!(letter, BREAK | QUOTE);
            while let Some(place) = breaks.next_if(|place| place.at <= at) {
                match place.kind {
                    BreakKind::Before => out.push(BREAK),
                    BreakKind::Quote => is_quoted = true,
                }
            }
            if is_quoted {
                out.push(QUOTE);
                out.push_str(&format!("{:x}", u32::from(letter)));
                out.push(QUOTE);
            } else {
                out.push(letter);
            }
        }
        if breaks.next().is_some() {
            out.push(BREAK);
        }
        Cow::Owned(out)
    }

    /// Where something must be done, in order.
    fn breaks(&self, text: &str) -> Vec<Break> {
        let mut breaks = Vec::new();
        let Some(finder) = &self.finder else { return breaks };
        for found in finder.find_overlapping_iter(text) {
            let name = &self.names[found.pattern().as_usize()];
            let first = name.chars().next().map_or(0, char::len_utf8);
            if first == name.len() {
                breaks.push(Break { at: found.start(), kind: BreakKind::Quote });
            } else {
                breaks.push(Break { at: found.start() + first, kind: BreakKind::Before });
            }
        }
        self.edges(text, &mut breaks);
        breaks.sort_unstable();
        breaks.dedup();
        breaks
    }

    /// A name may also arise from the end of a user's text and the beginning of the template's,
    /// or the other way round.
    fn edges(&self, text: &str, breaks: &mut Vec<Break>) {
        let body = text.trim();
        let start = text.len() - text.trim_start().len();
        if (1..=self.part_bytes_max)
            .any(|length| body.get(..length).is_some_and(|part| self.tails.contains(part)))
        {
            breaks.push(Break { at: start, kind: BreakKind::Before });
        }
        let ends = |length: usize| body.get(body.len().checked_sub(length)?..);
        if (1..=self.part_bytes_max)
            .any(|length| ends(length).is_some_and(|part| self.heads.contains(part)))
        {
            breaks.push(Break { at: start + body.len(), kind: BreakKind::Before });
        }
    }

    /// The text as the user wrote it.
    pub(super) fn undo<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !text.contains([BREAK, QUOTE]) {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find([BREAK, QUOTE]) {
            out.push_str(&rest[..at]);
            let is_quote = rest[at..].starts_with(QUOTE);
            rest = &rest[at + BREAK.len_utf8()..];
            // A template may cut a text anywhere: half a quote stands for nothing.
            if is_quote && let Some((code, tail)) = rest.split_once(QUOTE) {
                let code = u32::from_str_radix(code, 16).ok();
                out.extend(code.and_then(char::from_u32));
                rest = tail;
            }
        }
        out.push_str(rest);
        Cow::Owned(out)
    }

    /// Applies to every string in a value, keys included.
    pub(super) fn apply_deep(&self, value: Value) -> Value {
        match value {
            Value::String(text) => match self.apply(&text) {
                Cow::Borrowed(_) => Value::String(text),
                Cow::Owned(escaped) => Value::String(escaped),
            },
            Value::Array(values) => {
                Value::Array(values.into_iter().map(|value| self.apply_deep(value)).collect())
            }
            Value::Object(fields) => {
                let fields = fields.into_iter();
                let escaped = fields.map(|(key, value)| {
                    let key = self.apply(&key).into_owned();
                    (key, self.apply_deep(value))
                });
                Value::Object(escaped.collect())
            }
            other => other,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Break {
    /// Byte at which it applies.
    at: usize,
    kind: BreakKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BreakKind {
    /// A sentinel goes before this character.
    Before,
    /// This character is a special token by itself.
    Quote,
}

/// Letters and digits alone are left whole: templates compare such texts.
fn marks(part: &str) -> bool {
    part.chars().any(|c| !c.is_alphanumeric() && c != '_')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::Escape;

    fn escape() -> Escape {
        let names = ["<|end|>", "<s>", "[I]", "¤", "<s><s>", "[PAD"];
        Escape::for_names(names.map(Box::from).to_vec()).unwrap()
    }

    #[test]
    fn ordinary_text_is_not_touched() {
        for text in ["", "user", "a < b", "PAD", "function", "I", "{\"a\": 1}", "日本"] {
            assert_eq!(escape().apply(text), text);
        }
    }

    #[test]
    fn a_name_cannot_arise_at_the_seam_with_the_template() {
        for text in ["x<|end", "|>y", "x<|end \n", " \t|>", "x [", "]"] {
            let escaped = escape().apply(text).into_owned();
            let around = format!("<|end{}|>[I{}]<", escaped.trim(), escaped.trim());
            let inside = around.find(escaped.trim()).unwrap();
            assert!(escape().finder.unwrap().find_iter(&around).all(|found| {
                found.end() <= inside || found.start() >= inside + escaped.trim().len()
            }));
        }
    }

    proptest! {
        #[test]
        fn escaped_text_holds_no_name_and_comes_back(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "<|end|>", "<s>", "<", "s", ">", "[I]", "¤", "\u{fdd0}", "\u{fdd1}", "é", " ",
                    "41", "|end", "[PAD",
                ]),
                0..12,
            ),
        ) {
            let (escape, text) = (escape(), pieces.concat());
            let escaped = escape.apply(&text);
            prop_assert!(!escape.finder.as_ref().unwrap().is_match(escaped.as_ref()));
            prop_assert_eq!(escape.undo(&escaped).into_owned(), text.as_str());
        }
    }
}

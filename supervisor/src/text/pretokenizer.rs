//! Cuts text into the words inside which tokens are merged.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: a run of white space leaves its last character
//! to the word that follows. The regex engine used here has no look-ahead, which is why it needs
//! no backtracking and time linear in the text; that one rule is applied by hand.

use regex::Regex;

use super::TextError;

/// How one family of models cuts text. Sources: `tokenizer.json` of the models named, and the
/// table in llama.cpp's `llama-vocab.cpp`, where the names come from.
struct Family {
    names: &'static [&'static str],
    /// Applied one after another, each to the pieces of the one before.
    patterns: &'static [&'static str],
    /// Canonical composition comes first.
    composes: bool,
    /// A word that is a token as a whole is not merged from parts.
    whole_words: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";

const FAMILIES: [Family; 7] = [
    Family {
        names: &["gpt-2", "default", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"],
        patterns: &[GPT2],
        composes: false,
        whole_words: false,
    },
    Family {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        patterns: &[r"\p{N}", GPT2],
        composes: false,
        whole_words: false,
    },
    Family {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "lfm2",
            "midm-2.0",
            "glm4",
            "glm5",
        ],
        patterns: &[LLAMA3],
        composes: false,
        whole_words: true,
    },
    Family {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        patterns: &[LLAMA3],
        composes: false,
        whole_words: false,
    },
    Family { names: &["qwen2", "kormo"], patterns: &[QWEN2], composes: true, whole_words: false },
    Family {
        names: &["deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "grok-2", "solar-open"],
        patterns: &[QWEN2],
        composes: false,
        whole_words: false,
    },
    Family { names: &["qwen35"], patterns: &[QWEN35], composes: true, whole_words: false },
];

const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);

/// Whether models of this family want a begin-of-text token if the weight file does not say.
pub(super) fn starts_with_bos(name: &str) -> bool {
    !name.starts_with("glm") && FAMILIES.iter().any(|f| f.whole_words && f.names.contains(&name))
}

/// A compiled family.
#[derive(Debug)]
pub(super) struct Pretokenizer {
    stages: Vec<Stage>,
    pub(super) composes: bool,
    pub(super) whole_words: bool,
}

#[derive(Debug)]
struct Stage {
    regex: Regex,
    /// Runs of line ends are words of their own, so they keep their last character.
    keeps_line_ends: bool,
}

impl Pretokenizer {
    /// The way of cutting that a weight file names.
    pub(super) fn named(name: &str) -> Result<Self, TextError> {
        let family = FAMILIES.iter().find(|family| family.names.contains(&name));
        let family = family.ok_or_else(|| TextError::Pre {
            name: name.to_owned(),
            supported: FAMILIES
                .iter()
                .flat_map(|f| f.names)
                .copied()
                .collect::<Vec<_>>()
                .join(", "),
        })?;
        let stages = family.patterns.iter().map(|pattern| Stage {
            regex: Regex::new(pattern).expect("the patterns above are well formed"),
            keeps_line_ends: pattern.contains(r"\s*[\r\n]+"),
        });
        Ok(Self {
            stages: stages.collect(),
            composes: family.composes,
            whole_words: family.whole_words,
        })
    }

    /// Calls `word` with each word of the text, in order. Together they are the text.
    pub(super) fn cut(&self, text: &str, word: &mut dyn FnMut(&str)) {
        cut(&self.stages, text, word);
    }
}

fn cut(stages: &[Stage], text: &str, word: &mut dyn FnMut(&str)) {
    let Some((stage, rest)) = stages.split_first() else {
        return word(text);
    };
    let mut at = 0;
    while at < text.len() {
        let (start, end) = stage.next(text, at);
        if start > at {
            cut(rest, &text[at..start], word);
        }
        if end > start {
            cut(rest, &text[start..end], word);
        }
        at = end;
    }
}

impl Stage {
    /// The next match at or after `at`; an empty one at the end of the text if there is none.
    fn next(&self, text: &str, at: usize) -> (usize, usize) {
        let Some(found) = self.regex.find_at(text, at) else {
            return (text.len(), text.len());
        };
        let last = found.as_str().chars().next_back();
        let gives_back = last.is_some_and(|last| {
            last.is_whitespace() && !(self.keeps_line_ends && matches!(last, '\r' | '\n'))
        });
        let shortened = found.end() - last.map_or(0, char::len_utf8);
        if gives_back && found.end() < text.len() && shortened > found.start() {
            return (found.start(), shortened);
        }
        (found.start(), found.end())
    }
}

#[cfg(test)]
mod tests {
    use super::{FAMILIES, Pretokenizer};

    fn words(name: &str, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        Pretokenizer::named(name).unwrap().cut(text, &mut |word| words.push(word.to_owned()));
        words
    }

    #[test]
    fn the_last_space_of_a_run_belongs_to_the_next_word() {
        assert_eq!(words("gpt-2", "a   b"), ["a", "  ", " b"]);
        assert_eq!(words("gpt-2", "a \n b  "), ["a", " \n", " b", "  "]);
        assert_eq!(words("gpt-2", "a\nb"), ["a", "\n", "b"]);
        assert_eq!(words("qwen2", "a  \n\n  b"), ["a", "  \n\n", " ", " b"]);
        assert_eq!(words("qwen2", "a \t b"), ["a", " \t", " b"]);
        assert_eq!(words("qwen2", "a!\n\nb"), ["a", "!\n\n", "b"]);
        assert_eq!(words("qwen2", "x = 12"), ["x", " =", " ", "1", "2"]);
    }

    #[test]
    fn digits_stand_alone_where_the_model_learned_them_so() {
        assert_eq!(words("smollm", "a  12 b"), ["a", "  ", "1", "2", " b"]);
        assert_eq!(words("llama-bpe", "12345"), ["123", "45"]);
        assert_eq!(words("qwen2", "123"), ["1", "2", "3"]);
    }

    #[test]
    fn marks_stay_with_their_letter_in_qwen35_only() {
        assert_eq!(words("qwen35", "e\u{301}x"), ["e\u{301}x"]);
        assert_eq!(words("qwen2", "e\u{301}x"), ["e", "\u{301}x"]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let message = Pretokenizer::named("tekken9").unwrap_err().to_string();
        assert!(message.contains("`tekken9`") && message.contains("qwen35"), "{message}");
    }

    proptest::proptest! {
        #[test]
        fn the_words_together_are_the_text(text in "\\PC*|[ \\n\\r\\ta1'é!]*") {
            for family in &FAMILIES {
                proptest::prop_assert_eq!(words(family.names[0], &text).concat(), text.clone());
            }
        }
    }
}

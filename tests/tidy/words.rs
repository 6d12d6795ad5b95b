//! Words that must not stand anywhere: marks of unfinished work, and paths of one machine.

use crate::{Finding, Source};

/// Put together from halves, so that this file passes its own check.
const WORDS: [(&str, &str, &str); 9] = [
    ("TO", "DO", "do it, or file an issue"),
    ("FIX", "ME", "fix it, or file an issue"),
    ("X", "XX", "say it in a sentence"),
    ("/wo", "rk/", "use a path from the root of the workspace"),
    ("/tmp/p", "eer", "use a path from the root of the workspace"),
    ("/tmp/p", "lan", "use a path from the root of the workspace"),
    ("/root", "/", "use a path from the root of the workspace"),
    ("/home", "/", "use a path from the root of the workspace"),
    ("files.python", "hosted.org", "go through pip, which knows its index"),
];

/// Words that must not stand in a file.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        for (head, tail, fix) in WORDS {
            let word = format!("{head}{tail}");
            if contains_word(line, &word) {
                findings.push(Finding {
                    path: source.path.clone(),
                    line: index + 1,
                    rule: "forbidden word",
                    what: format!("`{word}`"),
                    fix,
                });
            }
        }
    }
    findings
}

/// Whether `word` stands in the line and not inside of a longer one.
fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
        !is_letter(before) && (word.ends_with('/') || !is_letter(after))
    })
}

#[cfg(test)]
mod tests {
    use super::{WORDS, check};
    use crate::Source;

    #[test]
    fn each_word_is_found_alone_and_not_inside_another() {
        for (head, tail, _) in WORDS {
            let found = Source::snippet("a.rs", &format!("// see {head}{tail}\n"));
            assert_eq!(check(&found).len(), 1, "{head}{tail}");
            let inside = Source::snippet("a.rs", &format!("// a{head}{tail}b\n"));
            assert_eq!(check(&inside), [], "{head}{tail}");
        }
    }
}

//! Words that may stand only in certain files: `unsafe`, the codec crate, the CUDA crate, and
//! what is left behind while one works.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::{Finding, Source};

struct Rule {
    name: &'static str,
    /// Tokens in a row.
    tokens: &'static [&'static str],
    /// Files and folders (ending in `/`) where they may stand.
    places: &'static [&'static str],
    fix: &'static str,
}

const UNSAFE_PLACES: [&str; 9] = [
    "kernels/src/cpu/",
    "kernels/src/cuda/",
    "kernels/src/gpu.rs",
    "worker/src/epitaph.rs",
    "worker/src/persist.rs",
    "worker/src/seal.rs",
    "worker/src/model/load.rs",
    "supervisor/src/worker/",
    // Hands its end of a socket pair to a child, as the supervisor does.
    "worker/tests/serve/peer.rs",
];

const PRINT_PLACES: [&str; 8] = [
    "supervisor/src/bin/strata-ctl.rs",
    "supervisor/src/ctl/",
    "supervisor/src/ctl.rs",
    "supervisor/src/main.rs",
    "worker/src/cli.rs",
    "worker/src/cli/",
    "tests/src/bin/",
    "kernels/benches/",
];

const SLEEP_FIX: &str = "wait for a condition: `strata_tests::wait::wait_until`, a channel, \
    `recv_timeout`; or list the file with a reason in tests/tidy/places.rs";

const RULES: [Rule; 9] = [
    Rule {
        name: "unsafe out of place",
        tokens: &["unsafe"],
        places: &UNSAFE_PLACES,
        fix: "use a safe way, or move it to one of the files that tests/tidy/places.rs lists",
    },
    Rule {
        name: "codec crate out of place",
        tokens: &["bincode"],
        places: &["shared/src/codec.rs"],
        fix: "go through shared::codec",
    },
    Rule {
        name: "CUDA crate out of place",
        tokens: &["cudarc"],
        places: &["kernels/src/"],
        fix: "wrap it in kernels/src/gpu.rs",
    },
    Rule {
        name: "stray dbg!",
        tokens: &["dbg", "!"],
        places: &[],
        fix: "remove it, or use tracing",
    },
    Rule {
        name: "stray todo!",
        tokens: &["todo", "!"],
        places: &[],
        fix: "do it, or leave it out",
    },
    Rule {
        name: "stray unimplemented!",
        tokens: &["unimplemented", "!"],
        places: &[],
        fix: "do it, or leave it out",
    },
    Rule {
        name: "stray println!",
        tokens: &["println", "!"],
        places: &PRINT_PLACES,
        fix: "use tracing, or return the text to the binary that prints it",
    },
    Rule {
        name: "sleep",
        tokens: &["thread", ":", ":", "sleep"],
        // The harness's one loop of looking and waiting.
        places: &["tests/src/wait.rs"],
        fix: SLEEP_FIX,
    },
    Rule { name: "sleep", tokens: &["sleep_ms"], places: &[], fix: SLEEP_FIX },
];

struct Token {
    text: String,
    line: usize,
}

fn flatten(stream: TokenStream, out: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Ident(ident) => out.push(Token { text: ident.to_string(), line }),
            TokenTree::Punct(punct) => out.push(Token { text: punct.to_string(), line }),
            TokenTree::Literal(_) => out.push(Token { text: String::new(), line }),
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                out.push(Token { text: open.to_owned(), line });
                flatten(group.stream(), out);
                let line = group.span_close().start().line;
                out.push(Token { text: close.to_owned(), line });
            }
        }
    }
}

/// Comments and literals do not count, macro bodies do.
fn tokens(source: &Source) -> Vec<Token> {
    let mut out = Vec::new();
    // What does not parse is found by the rule on functions.
    if let Ok(stream) = source.text.parse() {
        flatten(stream, &mut out);
    }
    out
}

fn may_stand(path: &str, places: &[&str]) -> bool {
    let fits =
        |place: &&str| if place.ends_with('/') { path.starts_with(*place) } else { path == *place };
    places.iter().any(fits)
}

/// Words out of their places.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let tokens = tokens(source);
    let mut findings = Vec::new();
    for rule in &RULES {
        if may_stand(&source.path, rule.places) {
            continue;
        }
        for window in tokens.windows(rule.tokens.len()) {
            if window.iter().zip(rule.tokens).all(|(token, word)| token.text == *word) {
                findings.push(Finding {
                    path: source.path.clone(),
                    line: window[0].line,
                    rule: rule.name,
                    what: format!("`{}` may not stand here", rule.tokens.concat()),
                    fix: rule.fix,
                });
            }
        }
    }
    findings
}

/// Lines above an `unsafe` block in which its SAFETY comment must start.
const SAFETY_LINES_MAX: usize = 16;

/// Unsafe blocks and implementations without a SAFETY comment.
pub(crate) fn check_safety(source: &Source) -> Vec<Finding> {
    let lines: Vec<&str> = source.text.lines().collect();
    let tokens = tokens(source);
    tokens
        .windows(2)
        .filter(|pair| pair[0].text == "unsafe" && matches!(pair[1].text.as_str(), "{" | "impl"))
        .map(|pair| pair[0].line)
        .filter(|line| {
            let above = &lines[line.saturating_sub(SAFETY_LINES_MAX)..*line];
            !above.iter().any(|line| line.contains("SAFETY:"))
        })
        .map(|line| Finding {
            path: source.path.clone(),
            line,
            rule: "unsafe without SAFETY",
            what: "nothing says why this is sound".to_owned(),
            fix: "write `// SAFETY:` above it: who upholds which condition",
        })
        .collect()
}

/// Crate roots that leave `unsafe` open.
pub(crate) fn check_root(source: &Source) -> Vec<Finding> {
    let is_closed = ["#![forbid(unsafe_code)]", "#![deny(unsafe_code)]"]
        .iter()
        .any(|attribute| source.text.contains(attribute));
    if !source.path.ends_with("src/lib.rs") || is_closed {
        return Vec::new();
    }
    vec![Finding {
        path: source.path.clone(),
        line: 1,
        rule: "open crate root",
        what: "the crate neither forbids nor denies unsafe code".to_owned(),
        fix: "write `#![forbid(unsafe_code)]`, or `deny` and `expect` in the files that need it",
    }]
}

#[cfg(test)]
mod tests {
    use super::{check, check_root, check_safety};
    use crate::Source;

    #[test]
    fn words_are_found_out_of_place_and_nowhere_else() {
        for (path, text) in [
            ("supervisor/src/session.rs", "fn f() { unsafe { g() } }"),
            ("worker/src/serve.rs", "use bincode::config;"),
            ("worker/src/serve.rs", "macro_rules! m { () => { dbg!(1) } }"),
            ("supervisor/src/api.rs", "fn f() { println!(\"a\"); }"),
            ("tests/src/server.rs", "fn f() { std::thread::sleep(d); }"),
        ] {
            assert_eq!(check(&Source::snippet(path, text)).len(), 1, "{path}: {text}");
        }
        for (path, text) in [
            ("kernels/src/cpu/pool.rs", "fn f() { unsafe { g() } }"),
            ("shared/src/codec.rs", "use bincode::config;"),
            ("worker/src/serve.rs", "// dbg!(unsafe)\nconst A: &str = \"todo!()\";"),
            ("tests/src/wait.rs", "fn f() { std::thread::sleep(d); }"),
            ("shared/src/lib.rs", "#![forbid(unsafe_code)]"),
        ] {
            assert_eq!(check(&Source::snippet(path, text)), [], "{path}: {text}");
        }
    }

    #[test]
    fn unsafe_blocks_need_their_reason() {
        let bare = Source::snippet("a.rs", "fn f() {\n    unsafe { g() }\n}");
        assert_eq!(check_safety(&bare)[0].line, 2);
        let argued = Source::snippet("a.rs", "// SAFETY: because.\nfn f() { unsafe { g() } }");
        assert_eq!(check_safety(&argued), []);
        let signature = Source::snippet("a.rs", "unsafe fn f() {}");
        assert_eq!(check_safety(&signature), []);
    }

    #[test]
    fn crate_roots_must_be_closed() {
        assert_eq!(check_root(&Source::snippet("a/src/lib.rs", "")).len(), 1);
        assert_eq!(check_root(&Source::snippet("a/src/lib.rs", "#![deny(unsafe_code)]")), []);
        assert_eq!(check_root(&Source::snippet("a/src/b.rs", "")), []);
    }
}

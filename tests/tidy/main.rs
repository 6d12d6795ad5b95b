//! The structure of this project, checked. Each finding names the rule and the fix.
//!
//! A rule is a function from a source text, or from the tree, to findings; each has a test on
//! snippets beside it, so that a rule that finds nothing is known to be able to find something.
#![forbid(unsafe_code)]

mod crates;
mod files;
mod functions;
mod places;
mod readme;
mod stems;
mod words;

use std::fmt;

/// One broken rule at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    path: String,
    /// 1-based; 0 stands for the whole file.
    line: usize,
    rule: &'static str,
    what: String,
    fix: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, rule, what, fix } = self;
        write!(f, "{path}:{line}: {rule}: {what}\n    fix: {fix}")
    }
}

/// A source file: its path from the root of the workspace, and its text.
#[derive(Debug, Clone)]
struct Source {
    path: String,
    text: String,
}

impl Source {
    #[cfg(test)]
    fn snippet(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

#[track_caller]
fn assert_clean(findings: &[Finding]) {
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), lines.join("\n"));
}

fn check_rust(rule: impl Fn(&Source) -> Vec<Finding>) {
    let sources = files::sources();
    assert!(sources.len() > 50, "the walk over the tree found hardly anything");
    let rust = sources.iter().filter(|source| source.is_rust());
    assert_clean(&rust.flat_map(rule).collect::<Vec<_>>());
}

#[test]
fn files_and_lines_are_short() {
    let findings: Vec<Finding> = files::sources().iter().flat_map(files::check_size).collect();
    assert_clean(&findings);
}

#[test]
fn functions_are_short() {
    check_rust(functions::check);
}

#[test]
fn dangerous_words_stay_in_their_places() {
    check_rust(places::check);
}

#[test]
fn unsafe_blocks_say_why_they_are_sound() {
    check_rust(places::check_safety);
}

#[test]
fn crate_roots_rule_out_unsafe_code() {
    check_rust(places::check_root);
}

#[test]
fn no_word_stands_where_it_must_not() {
    let findings: Vec<Finding> = files::sources().iter().flat_map(words::check).collect();
    assert_clean(&findings);
}

#[test]
fn crates_depend_only_on_what_the_table_allows() {
    assert_clean(&crates::check_all());
}

#[test]
fn every_op_has_all_its_siblings() {
    assert_clean(&stems::check(&files::sources()));
}

#[test]
fn readme_map_and_tree_agree() {
    assert_clean(&readme::check_map(&files::sources()));
}

#[test]
fn layout_sections_name_every_module() {
    check_rust(readme::check_layout);
}

//! What is written about the tree, against the tree: the code map of the root README, and the
//! Layout section of each crate.

use crate::{Finding, Source};

const MAP_HEADING: &str = "## Code map";

/// Paths of the code map that do not exist, and modules that it leaves out.
pub(crate) fn check_map(sources: &[Source]) -> Vec<Finding> {
    let finding = |line: usize, what: String, fix: &'static str| Finding {
        path: "README.md".to_owned(),
        line,
        rule: "code map",
        what,
        fix,
    };
    let readme = sources.iter().find(|source| source.path == "README.md");
    let text = readme.map_or("", |source| source.text.as_str());
    let lines = text.lines().enumerate().skip_while(|(_, line)| !line.starts_with(MAP_HEADING));
    let section: Vec<(usize, &str)> =
        lines.skip(1).take_while(|(_, line)| !line.starts_with("## ")).collect();
    if section.is_empty() {
        let fix = "write one: which path holds what";
        return vec![finding(0, format!("there is no section `{MAP_HEADING}`"), fix)];
    }
    let mut findings = Vec::new();
    let mut named = Vec::new();
    for (index, line) in &section {
        for path in line.split('`').skip(1).step_by(2).filter(|text| looks_like_path(text)) {
            named.push(path.trim_end_matches('/'));
            let folder = format!("{}/", path.trim_end_matches('/'));
            let exists = sources
                .iter()
                .any(|source| source.path == path || source.path.starts_with(&folder));
            if !exists {
                findings.push(finding(index + 1, format!("`{path}` is not there"), "correct it"));
            }
        }
    }
    for source in sources.iter().filter(|source| is_main_module(&source.path)) {
        let stem = source.path.trim_end_matches(".rs");
        if !named.iter().any(|path| path.trim_end_matches(".rs") == stem) {
            let what = format!("`{}` is not in it", source.path);
            findings.push(finding(section[0].0, what, "add a line that says what it holds"));
        }
    }
    findings
}

fn looks_like_path(text: &str) -> bool {
    text.contains('/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
        && !text.starts_with('/')
}

/// `<crate>/src/<module>.rs` of the two processes and of what they share.
fn is_main_module(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(parts[..], ["shared" | "worker" | "supervisor", "src", file] if file.ends_with(".rs"))
        && !path.ends_with("/lib.rs")
}

/// Modules that a crate's Layout section leaves out.
pub(crate) fn check_layout(source: &Source) -> Vec<Finding> {
    if !source.path.ends_with("src/lib.rs") || !source.text.contains("# Layout") {
        return Vec::new();
    }
    let modules = source.text.lines().filter_map(|line| {
        let line = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ");
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    let head: String = source.text.lines().filter(|line| line.starts_with("//!")).collect();
    modules
        .filter(|module| !head.contains(&format!("`{module}`")))
        .map(|module| Finding {
            path: source.path.clone(),
            line: 0,
            rule: "Layout section",
            what: format!("the module `{module}` is not in it"),
            fix: "add a line that says what it owns",
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{check_layout, check_map};
    use crate::Source;

    #[test]
    fn map_and_tree_are_compared_both_ways() {
        let readme = |map: &str| Source::snippet("README.md", &format!("# A\n## Code map\n{map}"));
        let file = Source::snippet("worker/src/serve.rs", "");
        let good = [readme("- `worker/src/serve.rs`: the loop\n"), file.clone()];
        assert_eq!(check_map(&good), []);
        let gone = [readme("- `worker/src/serve.rs`, `worker/src/old.rs`\n"), file.clone()];
        assert!(check_map(&gone)[0].what.contains("old.rs"));
        let left_out = [readme("- `worker/`: dies\n"), file];
        assert!(check_map(&left_out)[0].what.contains("serve.rs"));
        assert_eq!(check_map(&[Source::snippet("README.md", "# A\n")]).len(), 1);
    }

    #[test]
    fn a_module_missing_from_the_layout_is_found() {
        let text = "//! # Layout\n//!\n//! * [`a`]: one.\nmod a;\npub mod b;\n";
        assert!(check_layout(&Source::snippet("x/src/lib.rs", text))[0].what.contains("`b`"));
    }
}

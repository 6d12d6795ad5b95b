//! The walk over the tree, and how long files and lines may be.

use std::fs;
use std::path::Path;

use strata_tests::programs::workspace;

use crate::{Finding, Source};

const LINE_CHARS_MAX: usize = 100;
const FILE_LINES_MAX: usize = 600;
const KERNEL_LINES_MAX: usize = 300;
const MAIN_LINES_MAX: usize = 80;

/// Files that may be longer, with the reason.
const LONG_FILES: &[(&str, &str)] = &[];

const FOLDERS: [&str; 8] =
    ["shared", "kernels", "worker", "supervisor", "tests", "systemd", ".cargo", ".ci"];

const EXTENSIONS: [&str; 7] = ["rs", "toml", "md", "py", "cu", "cuh", "service"];

/// Every source file of the project, sorted by path.
pub(crate) fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    for name in FOLDERS {
        walk(&workspace().join(name), &mut found);
    }
    for name in ["README.md", "Cargo.toml", ".clippy.toml", ".rustfmt.toml"] {
        read(&workspace().join(name), &mut found);
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn walk(folder: &Path, found: &mut Vec<Source>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target" && name != "__pycache__") {
                walk(&path, found);
            }
        } else {
            read(&path, found);
        }
    }
}

fn read(path: &Path, found: &mut Vec<Source>) {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_source = extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
        || path.ends_with(".ci/run");
    let Some(name) = path.strip_prefix(workspace()).ok().and_then(Path::to_str) else { return };
    if is_source && let Ok(text) = fs::read_to_string(path) {
        found.push(Source { path: name.to_owned(), text });
    }
}

/// Lines too wide and files too long.
pub(crate) fn check_size(source: &Source) -> Vec<Finding> {
    let path = source.path.as_str();
    let mut findings = Vec::new();
    let is_code = [".rs", ".py", ".cu", ".cuh"].iter().any(|end| path.ends_with(end));
    if !is_code {
        return findings;
    }
    for (index, line) in source.text.lines().enumerate() {
        let width = line.chars().count();
        // A diagram may be as wide as what it shows.
        if width > LINE_CHARS_MAX && !line.contains(['│', '┌', '└', '├']) {
            findings.push(Finding {
                path: path.to_owned(),
                line: index + 1,
                rule: "line width",
                what: format!("{width} characters; the limit is {LINE_CHARS_MAX}"),
                fix: "break the line",
            });
        }
    }
    let lines = source.text.lines().count();
    let limit = if path.ends_with("src/main.rs") {
        MAIN_LINES_MAX
    } else if path.starts_with("kernels/src") {
        KERNEL_LINES_MAX
    } else {
        FILE_LINES_MAX
    };
    if lines > limit && LONG_FILES.iter().all(|(known, _)| *known != path) {
        findings.push(Finding {
            path: path.to_owned(),
            line: 0,
            rule: "file length",
            what: format!("{lines} lines; the limit here is {limit}"),
            fix: "split it by idea, or list it with a reason in tests/tidy/files.rs",
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check_size;
    use crate::Source;

    #[test]
    fn long_lines_and_files_are_found() {
        let wide =
            Source::snippet("worker/src/x.rs", &format!("fn a() {{}}\n// {}", "x".repeat(98)));
        assert_eq!(check_size(&wide)[0].line, 2);
        let diagram = Source::snippet("worker/src/x.rs", &format!("// │{}", "x".repeat(98)));
        assert_eq!(check_size(&diagram), []);
        for (path, lines) in [("worker/src/x.rs", 601), ("kernels/src/x.rs", 301)] {
            let long = Source::snippet(path, &"\n".repeat(lines));
            assert_eq!(check_size(&long)[0].rule, "file length", "{path}");
            let short = Source::snippet(path, &"\n".repeat(lines - 1));
            assert_eq!(check_size(&short), [], "{path}");
        }
    }

    #[test]
    fn the_list_of_long_files_names_files_that_are_long() {
        for (path, _) in super::LONG_FILES {
            let source = super::sources().into_iter().find(|source| source.path == *path);
            let lines = source.map_or(0, |source| source.text.lines().count());
            assert!(lines > super::KERNEL_LINES_MAX, "{path} need not be listed any more");
        }
    }
}

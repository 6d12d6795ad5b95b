//! One operation, one stem: `kernels/src/reference/<op>.rs`, `kernels/src/cpu/<op>.rs`,
//! `kernels/tests/<op>.rs`, and a row in `kernels/README.md`.

use std::collections::BTreeSet;

use crate::{Finding, Source};

/// Files in the operations' folders that are no operation, with the reason.
const HELPERS: [(&str, &str); 8] = [
    ("activations", "operands in the forms that kernels read"),
    ("dequantize", "what block formats mean; matmul and embed read through it"),
    ("exp", "a function that attention and swiglu share"),
    ("kv", "the layout of a page"),
    ("lanes", "vectors of the instruction levels"),
    ("pool", "threads"),
    ("rows", "how rows are cut into tasks"),
    ("shared_mut", "a slice written by several threads"),
];

const FIX: &str = "add the missing file or row, or list the helper in tests/tidy/stems.rs";

/// Operations with a missing sibling.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let places = ["kernels/src/reference/", "kernels/src/cpu/", "kernels/tests/"];
    let in_place = |place: &str| -> BTreeSet<String> {
        let names = sources.iter().filter_map(|source| source.path.strip_prefix(place));
        let stems = names.filter_map(|name| name.strip_suffix(".rs"));
        stems.filter(|stem| !stem.contains('/')).map(str::to_owned).collect()
    };
    let is_op = |stem: &String| HELPERS.iter().all(|(helper, _)| helper != stem);
    let found: Vec<BTreeSet<String>> = places.iter().map(|place| in_place(place)).collect();
    let ops: BTreeSet<&String> = found[..2].iter().flatten().filter(|stem| is_op(stem)).collect();
    let readme = sources.iter().find(|source| source.path == "kernels/README.md");
    let readme = readme.map_or("", |source| source.text.as_str());
    let mut findings = Vec::new();
    for op in ops {
        let mut miss = |what: String| {
            findings.push(Finding {
                path: what,
                line: 0,
                rule: "op sibling",
                what: format!("the operation `{op}` has none"),
                fix: FIX,
            });
        };
        for (place, stems) in places.iter().zip(&found) {
            if !stems.contains(op) {
                miss(format!("{place}{op}.rs"));
            }
        }
        if !readme.lines().any(|line| line.starts_with('|') && line.contains(&format!("`{op}`"))) {
            miss("kernels/README.md".to_owned());
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Source;

    #[test]
    fn each_missing_sibling_is_found() {
        let file = |path: &str| Source::snippet(path, "");
        let mut sources = vec![
            file("kernels/src/reference/rope.rs"),
            file("kernels/src/cpu/rope.rs"),
            file("kernels/src/cpu/pool.rs"),
            file("kernels/src/cpu/rope/tables.rs"),
            file("kernels/tests/rope.rs"),
            Source::snippet("kernels/README.md", "| `rope` | turns pairs |\n"),
        ];
        assert_eq!(check(&sources), []);
        for missing in [0, 1, 4, 5] {
            let mut without = sources.clone();
            let path = without.remove(missing).path;
            assert_eq!(check(&without)[0].path, path);
        }
        sources.push(file("kernels/src/reference/swiglu.rs"));
        assert_eq!(check(&sources).len(), 3);
    }
}

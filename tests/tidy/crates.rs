//! Who may depend on whom.

use crate::{Finding, Source, files};

struct Allowed {
    manifest: &'static str,
    normal: &'static [&'static str],
    /// For tests and benchmarks only.
    development: &'static [&'static str],
}

/// The table. What each third-party crate is for stands in the root README, "Choices of crates".
const TABLE: [Allowed; 5] = [
    Allowed {
        manifest: "shared/Cargo.toml",
        normal: &["bincode", "blake3", "serde", "thiserror"],
        development: &["proptest", "serde_json"],
    },
    Allowed {
        manifest: "kernels/Cargo.toml",
        normal: &["cudarc", "half", "thiserror"],
        development: &["proptest"],
    },
    Allowed {
        manifest: "worker/Cargo.toml",
        normal: &[
            "blake3",
            "clap",
            "half",
            "kernels",
            "memmap2",
            "nix",
            "serde",
            "serde_json",
            "shared",
            "thiserror",
        ],
        development: &["npyz", "proptest"],
    },
    Allowed {
        manifest: "supervisor/Cargo.toml",
        normal: &[
            "aho-corasick",
            "axum",
            "clap",
            "futures-util",
            "http-body-util",
            "hyper",
            "hyper-util",
            "minijinja",
            "minijinja-contrib",
            "nix",
            "regex",
            "serde",
            "serde_json",
            "shared",
            "thiserror",
            "tokenizers",
            "tokio",
            "tokio-io-timeout",
            "toml",
            "tracing",
            "tracing-subscriber",
            "unicode-normalization",
        ],
        development: &["proptest", "tower"],
    },
    Allowed {
        manifest: "tests/Cargo.toml",
        normal: &["blake3", "nix", "serde", "serde_json", "shared"],
        development: &["proc-macro2", "syn", "toml"],
    },
];

/// Edges of all manifests that the table does not allow, and manifests that it does not know.
pub(crate) fn check_all() -> Vec<Finding> {
    let sources = files::sources();
    let manifests = sources.iter().filter(|source| source.path.ends_with("/Cargo.toml"));
    manifests.flat_map(check).collect()
}

fn check(source: &Source) -> Vec<Finding> {
    let finding = |what: String, fix: &'static str| Finding {
        path: source.path.clone(),
        line: 0,
        rule: "dependency table",
        what,
        fix,
    };
    let Some(allowed) = TABLE.iter().find(|allowed| allowed.manifest == source.path) else {
        let fix = "the five crates are fixed; put the code into one of them";
        return vec![finding("a crate that the table does not know".to_owned(), fix)];
    };
    let manifest: toml::Table = match source.text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![finding(error.to_string(), "make it valid TOML")],
    };
    let mut findings = Vec::new();
    for (key, names) in [
        ("dependencies", allowed.normal.to_vec()),
        ("dev-dependencies", [allowed.normal, allowed.development].concat()),
        ("build-dependencies", Vec::new()),
    ] {
        let table = manifest.get(key).and_then(toml::Value::as_table);
        for name in table.into_iter().flat_map(toml::Table::keys) {
            if !names.contains(&name.as_str()) {
                findings.push(finding(
                    format!("`{name}` in [{key}]"),
                    "do without it, or add it to the table in tests/tidy/crates.rs and its \
                     reason to README.md, \"Choices of crates\"",
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Source;

    #[test]
    fn edges_outside_the_table_are_found() {
        for (path, text) in [
            ("worker/Cargo.toml", "[dependencies]\ntokio = \"1\""),
            ("supervisor/Cargo.toml", "[dependencies]\nkernels.workspace = true"),
            ("shared/Cargo.toml", "[dependencies]\nproptest = \"1\""),
            ("shared/Cargo.toml", "[build-dependencies]\ncc = \"1\""),
            ("extra/Cargo.toml", ""),
        ] {
            assert_eq!(check(&Source::snippet(path, text)).len(), 1, "{path}: {text}");
        }
        let fine = "[dependencies]\nserde.workspace = true\n[dev-dependencies]\nproptest = \"1\"";
        assert_eq!(check(&Source::snippet("shared/Cargo.toml", fine)), []);
    }
}

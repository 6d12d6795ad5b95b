//! The table of configuration keys: how each is named on the command line and explained.

/// The kind of value a key takes, for messages and for reading strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// Text, a path or an address.
    Text,
    /// A whole number that is not negative.
    Count,
    /// Seconds, fractions allowed.
    Seconds,
    /// A list of texts.
    List,
}

impl KeyKind {
    /// What may stand there, in words.
    #[must_use]
    pub fn allowed(self) -> &'static str {
        match self {
            Self::Text => "a text in quotes",
            Self::Count => "a whole number from 0 to 4294967295",
            Self::Seconds => "a number of seconds",
            Self::List => "a list of texts",
        }
    }
}

/// One key of [`shared::config::Config`].
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// As written in the file; flags use `-` for `_`, the environment capitals after `STRATA_`.
    pub name: &'static str,
    /// What it takes.
    pub kind: KeyKind,
    /// Placeholder in `--help`.
    pub placeholder: &'static str,
    /// One sentence for `--help`.
    pub help: &'static str,
}

impl Key {
    /// The flag without its dashes.
    #[must_use]
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// The environment variable.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("STRATA_{}", self.name.to_uppercase())
    }
}

const fn key(
    name: &'static str,
    kind: KeyKind,
    placeholder: &'static str,
    help: &'static str,
) -> Key {
    Key { name, kind, placeholder, help }
}

/// Every key, in the order `--help` and `--print-config` show them.
pub const KEYS: &[Key] = &[
    key("model", KeyKind::Text, "FILE", "Weight file in GGUF form; the first part of a split one"),
    key("model_name", KeyKind::Text, "NAME", "Name the API gives the model [weight file's name]"),
    key("listen", KeyKind::Text, "ADDRESS", "Address of the HTTP API"),
    key("api_keys", KeyKind::List, "KEY", "Key a client must show; may be repeated"),
    key("state_dir", KeyKind::Text, "DIR", "Where control.sock, logs and checkpoints live"),
    key("worker_program", KeyKind::Text, "FILE", "The worker's program [beside this one]"),
    key("threads", KeyKind::Count, "N", "Compute threads; 0 takes one per core"),
    key("context", KeyKind::Count, "N", "Context length in tokens; 0 takes the model's own"),
    key("slots", KeyKind::Count, "N", "Sequences computed at once"),
    key("prefill_chunk", KeyKind::Count, "N", "Longest part of a prompt in one pass, in tokens"),
    key("queue_limit", KeyKind::Count, "N", "Requests that may wait; the next gets status 429"),
    key("choices_max", KeyKind::Count, "N", "Most choices (n) one request may ask for"),
    key("progress_deadline_s", KeyKind::Seconds, "S", "Replace a worker that stands still for S"),
    key("load_deadline_s", KeyKind::Seconds, "S", "Replace a worker whose loading stands still"),
    key("drain_timeout_s", KeyKind::Seconds, "S", "How long a stop waits for streams in flight"),
    key("client_stall_timeout_s", KeyKind::Seconds, "S", "Cut a client that takes no byte for S"),
    key("restart_delay_s", KeyKind::Seconds, "S", "Wait before the second failed start in a row"),
    key("restart_delay_max_s", KeyKind::Seconds, "S", "Longest wait between starts"),
    key("failures_max", KeyKind::Count, "N", "Failures in a row before the service is degraded"),
    key("forgive_after_s", KeyKind::Seconds, "S", "Serving this long forgives one failure"),
    key("log", KeyKind::Text, "FILTER", "What is logged (info, strata_supervisor=debug)"),
];

/// The key of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

#[cfg(test)]
mod tests {
    use shared::config::Config;

    use super::{KEYS, find};

    #[test]
    fn the_table_names_exactly_the_keys_of_the_configuration() {
        let defaults = toml::Table::try_from(Config::default()).unwrap();
        for name in defaults.keys() {
            assert!(find(name).is_some(), "{name} has no row in KEYS");
        }
        assert_eq!(defaults.len(), KEYS.len());
    }
}

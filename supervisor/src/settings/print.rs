//! `--print-config`: a valid configuration file with the source of each value beside it.

use std::fmt::Write as _;

use toml::{Table, Value};

use super::Settings;
use super::keys::KEYS;

/// One line a key, in the order of the table of keys.
pub(super) fn print(settings: &Settings) -> String {
    let table = Table::try_from(&settings.config).expect("the configuration is plain values");
    let lines: Vec<(String, String)> = KEYS
        .iter()
        .map(|key| {
            let value = match (key.name, &table[key.name]) {
                ("api_keys", Value::Array(keys)) => {
                    Value::Array(keys.iter().map(|_| Value::from("(hidden)")).collect())
                }
                (_, value) => value.clone(),
            };
            (format!("{} = {value}", key.name), settings.source(key.name).to_string())
        })
        .collect();
    let width = lines.iter().map(|(line, _)| line.len().min(48)).max().unwrap_or(0);
    let mut out = String::new();
    for (line, source) in lines {
        writeln!(out, "{line:width$}  # {source}").expect("writing to a String cannot fail");
    }
    out
}

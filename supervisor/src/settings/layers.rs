//! Merging the layers as TOML tables, one key at a time, so that each error names its place.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use shared::config::Config;
use toml::{Table, Value};

use super::keys::{KEYS, Key, KeyKind, find};
use super::{Settings, Source, default_state_dir};
use crate::exit::{Exit, StartError};

/// The largest configuration file that is read.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The merge so far.
pub(super) struct Layers {
    table: Table,
    sources: BTreeMap<&'static str, Source>,
}

impl Layers {
    /// The lowest layer.
    pub(super) fn with_defaults(environment: &BTreeMap<String, String>) -> Self {
        let config = Config { state_dir: default_state_dir(environment), ..Config::default() };
        let table = Table::try_from(config).expect("the defaults are plain values");
        Self { table, sources: BTreeMap::new() }
    }

    /// Adds a file's keys.
    pub(super) fn add_file(&mut self, path: &Path) -> Result<(), StartError> {
        let text = read_bounded(path)?;
        let fail = |line: Option<usize>, message: &str| {
            let line = line.map_or(String::new(), |line| format!(":{line}"));
            configuration(format!("{}{line}: {}", path.display(), message.trim_end()))
        };
        let syntax = |error: toml::de::Error| {
            let line = error.span().map(|span| line_of(&text, span.start));
            fail(line, &error.message().replace('\n', ", "))
        };
        let lines: BTreeMap<String, usize> = toml::de::DeTable::parse(&text)
            .map_err(syntax)?
            .get_ref()
            .keys()
            .map(|key| (key.get_ref().to_string(), line_of(&text, key.span().start)))
            .collect();
        for (name, value) in text.parse::<Table>().map_err(syntax)? {
            let line = lines.get(&name).copied().unwrap_or(1);
            let Some(key) = find(&name) else {
                let message = format!("unknown key `{name}` (`--help` lists all keys)");
                return Err(fail(Some(line), &message));
            };
            self.set(key, value, Source::File { path: path.to_owned(), line })?;
        }
        Ok(())
    }

    /// Adds the variables that name a key. Others that begin alike belong to other programs.
    pub(super) fn add_environment(
        &mut self,
        environment: &BTreeMap<String, String>,
    ) -> Result<(), StartError> {
        for key in KEYS {
            let variable = key.variable();
            if let Some(text) = environment.get(&variable).filter(|text| !text.is_empty()) {
                let value = match key.kind {
                    KeyKind::List => list(text.split(',').map(str::trim)),
                    _ => scalar(key.kind, text),
                };
                self.set(key, value, Source::Environment(variable))?;
            }
        }
        Ok(())
    }

    /// Adds the flags.
    pub(super) fn add_flags(
        &mut self,
        flags: &[(&'static str, Vec<String>)],
    ) -> Result<(), StartError> {
        for (name, values) in flags {
            let key = find(name).expect("flags are made from the table of keys");
            let value = match (key.kind, values.last()) {
                (KeyKind::List, _) => list(values.iter().map(String::as_str)),
                (kind, Some(text)) => scalar(kind, text),
                (_, None) => continue,
            };
            self.set(key, value, Source::Flag(format!("--{}", key.flag())))?;
        }
        Ok(())
    }

    fn set(&mut self, key: &'static Key, value: Value, source: Source) -> Result<(), StartError> {
        let alone = Table::from_iter([(key.name.to_owned(), value.clone())]);
        if alone.try_into::<Config>().is_err() {
            let shown = if key.kind == KeyKind::List {
                "not a list of texts".to_owned()
            } else {
                value.to_string()
            };
            let allowed = match key.name {
                "listen" => "an address with a port, as in 127.0.0.1:8080",
                _ => key.kind.allowed(),
            };
            return Err(configuration(format!(
                "{source}: `{}` is {shown}, but must be {allowed}",
                key.name
            )));
        }
        self.table.insert(key.name.to_owned(), value);
        self.sources.insert(key.name, source);
        Ok(())
    }

    /// The typed result.
    pub(super) fn finish(self) -> Result<Settings, StartError> {
        let config = self.table.try_into().map_err(|error: toml::de::Error| {
            configuration(format!("configuration: {}", error.message()))
        })?;
        Ok(Settings { config, sources: self.sources })
    }
}

fn configuration(message: String) -> StartError {
    StartError::new(Exit::Configuration, message)
}

fn read_bounded(path: &Path) -> Result<String, StartError> {
    let fail = |error: &dyn std::fmt::Display| {
        configuration(format!("{}: cannot be read: {error}", path.display()))
    };
    // Opening a pipe would wait for its writer.
    let kind = std::fs::metadata(path).map_err(|error| fail(&error))?.file_type();
    if !kind.is_file() {
        return Err(fail(&"it is not a regular file"));
    }
    let mut text = String::new();
    let file = File::open(path).map_err(|error| fail(&error))?;
    let size = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    if size.map_err(|error| fail(&error))? as u64 > FILE_BYTES_MAX {
        return Err(fail(&format!("it has more than the {FILE_BYTES_MAX} bytes that are allowed")));
    }
    Ok(text)
}

/// A text from a flag or a variable as the value the key wants; left a text where it is none, so
/// that the type check names it.
fn scalar(kind: KeyKind, text: &str) -> Value {
    let text = text.trim();
    let number = match kind {
        KeyKind::Count => text.parse().ok().map(Value::Integer),
        KeyKind::Seconds => text.parse().ok().map(Value::Float),
        KeyKind::Text | KeyKind::List => None,
    };
    number.unwrap_or_else(|| Value::String(text.to_owned()))
}

fn list<'a>(texts: impl Iterator<Item = &'a str>) -> Value {
    Value::Array(texts.map(|text| Value::String(text.to_owned())).collect())
}

/// 1-based line of a byte offset.
fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

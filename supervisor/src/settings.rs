//! The configuration as this process found it: defaults, file, environment and flags, each key
//! with the place its value came from.
//!
//! Later layers win: default < file < environment < flags. The file is the one `--config` names,
//! else `/etc/strata/strata.toml` where it exists. An empty variable counts as not set.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use shared::config::Config;

use crate::exit::{Exit, StartError};

pub mod command;
pub mod keys;
mod layers;
mod print;

/// The file read when no flag names one.
pub const DEFAULT_FILE: &str = "/etc/strata/strata.toml";

/// Name of the control socket in its directory.
pub const CONTROL_SOCKET: &str = "control.sock";

/// Variables that are no keys: the worker's, and those of tests.
const OTHER_VARIABLES: [&str; 5] =
    ["STRATA_ISA", "STRATA_FAKE", "STRATA_PROGRAMS", "STRATA_STREAMS", "STRATA_SIMULATION_SEEDS"];

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Built in.
    Default,
    /// A line of a configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// 1-based.
        line: usize,
    },
    /// A variable, by name.
    Environment(String),
    /// A flag, with its dashes.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(variable) => write!(f, "environment {variable}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// What the process was given, before it is understood.
#[derive(Debug, Default)]
pub struct Inputs {
    /// The file `--config` names.
    pub file: Option<PathBuf>,
    /// Flags that were given: key and values.
    pub flags: Vec<(&'static str, Vec<String>)>,
    /// The environment.
    pub environment: BTreeMap<String, String>,
}

/// The merged configuration with the source of each key.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The result. Types are right; bounds are checked by [`Settings::validate`].
    pub config: Config,
    sources: BTreeMap<&'static str, Source>,
}

impl Settings {
    /// Merges all layers.
    ///
    /// # Errors
    ///
    /// An unreadable file, an unknown key or a value of the wrong type, as one line that names the
    /// place; exit [`Exit::Configuration`].
    pub fn load(inputs: &Inputs) -> Result<Self, StartError> {
        let mut layers = layers::Layers::with_defaults(&inputs.environment);
        match &inputs.file {
            Some(path) => layers.add_file(path)?,
            None if Path::new(DEFAULT_FILE).exists() => layers.add_file(Path::new(DEFAULT_FILE))?,
            None => {}
        }
        layers.add_environment(&inputs.environment)?;
        layers.add_flags(&inputs.flags)?;
        layers.finish()
    }

    /// Checks every bound.
    ///
    /// # Errors
    ///
    /// The first value out of range, with its place.
    pub fn validate(&self) -> Result<(), StartError> {
        self.config.validate().map_err(|error| self.refuse(error.key, &error))?;
        self.validate_but_model()
    }

    /// Checks every bound, but not that a model is named.
    ///
    /// # Errors
    ///
    /// The first value out of range, with its place.
    pub fn validate_but_model(&self) -> Result<(), StartError> {
        self.config.validate_but_model().map_err(|error| self.refuse(error.key, &error))?;
        if self.config.state_dir.as_os_str().is_empty() {
            let what = "`state_dir` is empty, but must be the path of a directory";
            return Err(self.refuse("state_dir", &what));
        }
        crate::journal::check(&self.config.log).map_err(|error| {
            let log = &self.config.log;
            self.refuse("log", &format!("`log` is {log:?}, which is no tracing filter: {error}"))
        })
    }

    fn refuse(&self, key: &str, what: &dyn fmt::Display) -> StartError {
        let source = self.source(key);
        let place = if *source == Source::Default { String::new() } else { format!("{source}: ") };
        StartError::new(Exit::Configuration, format!("{place}{what}"))
    }

    /// Where the value of `key` came from.
    #[must_use]
    pub fn source(&self, key: &str) -> &Source {
        self.sources.get(key).unwrap_or(&Source::Default)
    }

    /// Every key with its value and source, one a line, as TOML with comments. API keys are hidden.
    #[must_use]
    pub fn print(&self) -> String {
        print::print(self)
    }
}

/// The state directory when nothing names one: systemd's, else the user's.
#[must_use]
pub fn default_state_dir(environment: &BTreeMap<String, String>) -> PathBuf {
    let get = |name: &str| environment.get(name).filter(|value| !value.is_empty());
    if let Some(list) = get("STATE_DIRECTORY") {
        // systemd joins several directories with colons; the first is ours.
        return PathBuf::from(list.split(':').next().unwrap_or(list));
    }
    if let Some(home) = get("XDG_STATE_HOME") {
        return Path::new(home).join("strata");
    }
    let home = get("HOME").map_or("/", String::as_str);
    Path::new(home).join(".local/state/strata")
}

/// The control socket of a supervisor: in systemd's runtime directory, else the state directory.
#[must_use]
pub fn control_socket(environment: &BTreeMap<String, String>, state_dir: &Path) -> PathBuf {
    match environment.get("RUNTIME_DIRECTORY").filter(|value| !value.is_empty()) {
        Some(list) => Path::new(list.split(':').next().unwrap_or(list)).join(CONTROL_SOCKET),
        None => state_dir.join(CONTROL_SOCKET),
    }
}

/// Warns of variables that look like keys and are none: most likely misspelled.
pub fn warn_of_unknown_variables(environment: &BTreeMap<String, String>) {
    let is_known = |name: &str| {
        keys::KEYS.iter().any(|key| key.variable() == name)
            || OTHER_VARIABLES.contains(&name)
            || name.starts_with("STRATA_TEST_")
    };
    for variable in environment.keys() {
        if variable.starts_with("STRATA_") && !is_known(variable) {
            tracing::warn!(variable, "this variable names no key and is ignored; misspelled?");
        }
    }
}

/// The process's environment; entries that are not UTF-8 are left out.
#[must_use]
pub fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests;

//! The typed configuration: every key, its default, its bounds.
//!
//! Reading files, flags and the environment belongs to the binaries; a key is spelled the same in
//! all of them (`queue_limit`, `--queue-limit`, `STRATA_QUEUE_LIMIT`).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::{CHOICES_MAX, CONTEXT_LEN_MAX, SLOTS_MAX};

/// Everything that can be configured. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Weight file in GGUF form; the first part of a split one.
    pub model: PathBuf,
    /// Name the API gives the model; empty takes it from the weight file.
    pub model_name: String,
    /// Address of the HTTP API.
    pub listen: SocketAddr,
    /// Keys of which a client must show one; empty asks for none.
    pub api_keys: Vec<String>,
    /// Where `control.sock`, logs and checkpoints live.
    pub state_dir: PathBuf,
    /// The worker's program; empty looks beside the supervisor's own.
    pub worker_program: PathBuf,
    /// Compute threads; 0 takes one per core.
    pub threads: u32,
    /// Context length per sequence, in tokens; 0 takes the model's own.
    pub context: u32,
    /// Sequences computed at once.
    pub slots: u32,
    /// Longest part of a prompt computed in one pass, in tokens.
    pub prefill_chunk: u32,
    /// Requests that may wait for a slot; the next one gets 429.
    pub queue_limit: u32,
    /// Most choices (`n`) one request may ask for.
    pub choices_max: u32,
    /// A worker with work that makes no progress for this long is replaced.
    pub progress_deadline_s: f64,
    /// A worker that loads and reads no further byte for this long is replaced.
    pub load_deadline_s: f64,
    /// How long a stop waits for streams in flight.
    pub drain_timeout_s: f64,
    /// A client that takes no byte for this long is cut.
    pub client_stall_timeout_s: f64,
    /// Wait before the second start in a row that failed; it doubles up to the maximum.
    pub restart_delay_s: f64,
    /// See `restart_delay_s`.
    pub restart_delay_max_s: f64,
    /// Failures in a row after which the service calls itself degraded and refuses requests.
    pub failures_max: u32,
    /// A worker that served this long forgives one failure.
    pub forgive_after_s: f64,
    /// What is logged, as a tracing filter ("info", "strata_supervisor=debug").
    pub log: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            model: PathBuf::new(),
            model_name: String::new(),
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            api_keys: Vec::new(),
            state_dir: PathBuf::new(),
            worker_program: PathBuf::new(),
            threads: 0,
            context: 0,
            slots: 4,
            prefill_chunk: 512,
            queue_limit: 64,
            choices_max: 8,
            progress_deadline_s: 30.0,
            load_deadline_s: 120.0,
            drain_timeout_s: 30.0,
            client_stall_timeout_s: 120.0,
            restart_delay_s: 0.5,
            restart_delay_max_s: 60.0,
            failures_max: 8,
            forgive_after_s: 60.0,
            log: "info".to_owned(),
        }
    }
}

/// A value that cannot be used: its key, what it is, and what it may be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` is {value}, but must be {allowed}")]
pub struct ConfigError {
    /// The key as written in the file.
    pub key: &'static str,
    /// The value found.
    pub value: String,
    /// What would be accepted.
    pub allowed: String,
}

impl Config {
    /// Checks every bound.
    ///
    /// # Errors
    ///
    /// The first value that cannot be used.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.model.as_os_str().is_empty() {
            return Err(ConfigError {
                key: "model",
                value: "not set".to_owned(),
                allowed: "the path of a GGUF file (`--model FILE`)".to_owned(),
            });
        }
        self.validate_but_model()
    }

    /// Checks every bound, but not that a model is named.
    ///
    /// # Errors
    ///
    /// The first value that cannot be used.
    pub fn validate_but_model(&self) -> Result<(), ConfigError> {
        if !self.listen.ip().is_loopback() && self.api_keys.is_empty() {
            return Err(ConfigError {
                key: "listen",
                value: self.listen.to_string(),
                allowed: "a loopback address while `api_keys` is empty: anyone on the network \
                          could use the server"
                    .to_owned(),
            });
        }
        if self.api_keys.iter().any(|key| key.len() < 8) {
            return Err(ConfigError {
                key: "api_keys",
                value: "a key of fewer than 8 characters".to_owned(),
                allowed: "keys of at least 8 characters".to_owned(),
            });
        }
        self.validate_counts()?;
        self.validate_times()
    }

    fn validate_counts(&self) -> Result<(), ConfigError> {
        for (key, value, low, high) in [
            ("threads", self.threads, 0, 1024),
            ("context", self.context, 0, CONTEXT_LEN_MAX),
            ("slots", self.slots, 1, SLOTS_MAX),
            ("prefill_chunk", self.prefill_chunk, 1, 65_536),
            ("queue_limit", self.queue_limit, 0, 65_536),
            ("choices_max", self.choices_max, 1, CHOICES_MAX),
            ("failures_max", self.failures_max, 1, 1000),
        ] {
            if value < low || value > high {
                return Err(ConfigError {
                    key,
                    value: value.to_string(),
                    allowed: format!("between {low} and {high}"),
                });
            }
        }
        Ok(())
    }

    fn validate_times(&self) -> Result<(), ConfigError> {
        for (key, value, low) in [
            ("progress_deadline_s", self.progress_deadline_s, 0.5),
            ("load_deadline_s", self.load_deadline_s, 1.0),
            ("drain_timeout_s", self.drain_timeout_s, 0.0),
            ("client_stall_timeout_s", self.client_stall_timeout_s, 1.0),
            ("restart_delay_s", self.restart_delay_s, 0.0),
            ("restart_delay_max_s", self.restart_delay_max_s, self.restart_delay_s),
            ("forgive_after_s", self.forgive_after_s, 0.0),
        ] {
            let high = Duration::from_secs(7 * 24 * 3600).as_secs_f64();
            if !(low..=high).contains(&value) {
                return Err(ConfigError {
                    key,
                    value: value.to_string(),
                    allowed: format!("between {low} and {high} seconds"),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Config;

    fn usable() -> Config {
        Config { model: "m.gguf".into(), ..Config::default() }
    }

    #[test]
    fn the_defaults_need_only_a_model() {
        usable().validate().unwrap();
        assert_eq!(Config::default().validate().unwrap_err().key, "model");
    }

    #[test]
    fn an_open_address_needs_a_key() {
        let mut config = usable();
        config.listen = "0.0.0.0:8080".parse().unwrap();
        assert_eq!(config.validate().unwrap_err().key, "listen");
        config.api_keys = vec!["long enough".to_owned()];
        config.validate().unwrap();
        config.slots = 0;
        assert_eq!(config.validate_but_model().unwrap_err().key, "slots");
    }

    #[test]
    fn values_out_of_range_name_their_key() {
        let slots = Config { slots: 0, ..usable() };
        let deadline = Config { progress_deadline_s: f64::NAN, ..usable() };
        let drain = Config { drain_timeout_s: -1.0, ..usable() };
        let delay = Config { restart_delay_max_s: 0.1, ..usable() };
        for (config, key) in [
            (slots, "slots"),
            (deadline, "progress_deadline_s"),
            (drain, "drain_timeout_s"),
            (delay, "restart_delay_max_s"),
        ] {
            assert_eq!(config.validate().unwrap_err().key, key);
        }
    }
}

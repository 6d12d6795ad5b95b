//! Why a worker life ended, in the words of the status, the journal and the API. Pure.

use std::fmt;

use shared::fault::WorkerExit;

/// How a process ended, as the operating system tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// With an exit code of the table.
    Known(WorkerExit),
    /// With a code that is not in the table.
    Unknown(i32),
    /// By a signal, e.g. `SIGSEGV`.
    Signal(String),
    /// By SIGKILL, while Linux killed a process for want of memory.
    OomKilled,
    /// Nobody could say: its status was lost.
    Lost,
}

/// Why a worker life ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// By itself, or by somebody else's hand.
    Exited {
        /// How.
        exit: Exit,
        /// Its last words; may be empty.
        epitaph: String,
    },
    /// It made no progress within the deadline.
    Hang,
    /// It read no further byte of the weights within the deadline.
    LoadTimeout,
    /// It broke the protocol; says how.
    Protocol(String),
    /// It closed the link and stayed.
    LinkClosed,
    /// It found a non-finite value, said so, and left.
    NonFinite,
    /// It was ordered away.
    Operator,
    /// It loaded other weights than the lives before it.
    OtherWeights,
    /// It could not be started; says why.
    Spawn(String),
}

impl Reason {
    /// A breach of the protocol.
    #[must_use]
    pub fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol(what.into())
    }

    /// The name it is counted under.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Exited { exit, .. } => match exit {
                Exit::Known(exit) => exit_name(*exit).to_owned(),
                Exit::Unknown(code) => format!("exit_{code}"),
                Exit::Signal(name) => name.to_lowercase(),
                Exit::OomKilled => "oom_killed".to_owned(),
                Exit::Lost => "unknown".to_owned(),
            },
            Self::Hang => "hang".to_owned(),
            Self::LoadTimeout => "load_timeout".to_owned(),
            Self::Protocol(_) => "protocol".to_owned(),
            Self::LinkClosed => "link_closed".to_owned(),
            Self::NonFinite => "nonfinite".to_owned(),
            Self::Operator => "operator".to_owned(),
            Self::OtherWeights => "other_weights".to_owned(),
            Self::Spawn(_) => "spawn".to_owned(),
        }
    }

    /// The kind of a request's failure that it causes.
    #[must_use]
    pub fn failure_kind(&self) -> &'static str {
        match self {
            Self::Hang => "hang",
            Self::NonFinite => "nonfinite",
            Self::Exited { exit: Exit::Known(WorkerExit::NonFinite), .. } => "nonfinite",
            Self::LoadTimeout | Self::OtherWeights | Self::Spawn(_) => "load",
            Self::Exited { .. } | Self::Protocol(_) | Self::LinkClosed | Self::Operator => "crash",
        }
    }

    /// Whether a session that was being computed may be the cause. A process that was killed or
    /// told to leave from outside died by somebody else's hand.
    #[must_use]
    pub fn may_be_the_sessions_fault(&self) -> bool {
        match self {
            Self::Exited { exit: Exit::Known(WorkerExit::Clean), .. } => false,
            // The epitaph of a signal that another process sent says who it was.
            Self::Exited { exit: Exit::Signal(name), epitaph } => {
                !is_a_persons(name) && !epitaph.contains(" sent_by=")
            }
            Self::Exited { .. } | Self::Hang | Self::NonFinite | Self::LinkClosed => true,
            Self::Protocol(_) => true,
            Self::LoadTimeout | Self::OtherWeights | Self::Operator | Self::Spawn(_) => false,
        }
    }
}

/// What stands between a reason and the words of the worker or the system, which may hold paths.
const DETAIL: &str = "; in detail: ";

/// The part of a cause that clients may see; the operator sees all of it.
#[must_use]
pub fn public(cause: &str) -> &str {
    cause.split_once(DETAIL).map_or(cause, |(public, _)| public)
}

/// Signals by which people and service managers end processes; no fault raises them.
fn is_a_persons(signal: &str) -> bool {
    matches!(signal, "SIGKILL" | "SIGTERM" | "SIGINT" | "SIGHUP" | "SIGQUIT")
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { exit, epitaph } => {
                match exit {
                    Exit::Known(exit) => {
                        write!(f, "it exited with code {} ({})", exit.code(), exit_name(*exit))?;
                    }
                    Exit::Unknown(code) => write!(f, "it exited with code {code}")?,
                    Exit::Signal(name) => write!(f, "it died by {name}")?,
                    Exit::OomKilled => f.write_str("Linux killed it for want of memory")?,
                    Exit::Lost => f.write_str("it ended, nobody knows how")?,
                }
                if !epitaph.is_empty() {
                    write!(f, "{DETAIL}{epitaph}")?;
                }
                Ok(())
            }
            Self::Hang => f.write_str("it made no progress within `progress_deadline_s`"),
            Self::LoadTimeout => {
                f.write_str("it read no further byte of the model within `load_deadline_s`")
            }
            Self::Protocol(what) => write!(f, "it broke the protocol{DETAIL}{what}"),
            Self::LinkClosed => f.write_str("it closed its link without leaving"),
            Self::NonFinite => f.write_str("it met a value that is not finite"),
            Self::Operator => f.write_str("it was ordered away"),
            Self::OtherWeights => f.write_str(
                "the weight file is not the one that was served before: put that one back, or \
                 restart the supervisor to serve this one",
            ),
            Self::Spawn(error) => write!(f, "it could not be started{DETAIL}{error}"),
        }
    }
}

/// The name of an exit code in counters and causes. A value that is not finite has one name
/// there, however it was reported: the API's.
#[must_use]
pub fn exit_name(exit: WorkerExit) -> &'static str {
    match exit {
        WorkerExit::NonFinite => "nonfinite",
        exit => exit.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Exit, Reason, public};
    use shared::fault::WorkerExit;

    #[test]
    fn clients_see_neither_paths_nor_the_workers_own_words() {
        let secret = "cannot open /srv/models/secret.gguf".to_owned();
        let model = Exit::Known(WorkerExit::Model);
        for reason in [
            Reason::Exited { exit: model, epitaph: secret.clone() },
            Reason::Protocol(secret.clone()),
            Reason::Spawn(secret),
        ] {
            let cause = format!("the worker cannot start: {reason}");
            assert!(cause.contains("secret"));
            assert!(!public(&cause).contains("secret"), "{cause}");
            assert!(public(&cause).starts_with("the worker cannot start: it "), "{cause}");
        }
        assert_eq!(public("held by the operator"), "held by the operator");
    }

    #[test]
    fn only_a_death_of_its_own_making_is_held_against_what_was_computed() {
        let blames =
            |exit| Reason::Exited { exit, epitaph: String::new() }.may_be_the_sessions_fault();
        let signal = |name: &str| Exit::Signal(name.to_owned());
        for exit in [signal("SIGKILL"), signal("SIGTERM"), Exit::Known(WorkerExit::Clean)] {
            assert!(!blames(exit.clone()), "{exit:?}");
        }
        let epitaph = "incarnation=1 exit=signal signal=SIGSEGV sent_by=77".to_owned();
        let sent = Reason::Exited { exit: signal("SIGSEGV"), epitaph };
        assert!(!sent.may_be_the_sessions_fault());
        for exit in [signal("SIGSEGV"), Exit::OomKilled, Exit::Known(WorkerExit::Panic)] {
            assert!(blames(exit.clone()), "{exit:?}");
        }
    }
}

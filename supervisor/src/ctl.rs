//! `strata-ctl`, the operator's tool: everything it does, it asks of the control socket.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};

use crate::settings::{CONTROL_SOCKET, Inputs, Settings, control_socket, environment};

mod chat;
mod client;
mod status;

use client::Client;

/// Where systemd keeps the socket of the service.
const SERVICE_SOCKET: &str = "/run/strata/control.sock";

const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  done
  1  failed: the supervisor answered, but with a failure
  2  command line not understood
  3  no supervisor could be reached
  4  refused: the order makes no sense now, or the request cannot be accepted";

/// How a command ends badly.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// The supervisor answered with a failure, or the answer broke off.
    #[error("{0}")]
    Failed(String),
    /// Nobody answers at the socket.
    #[error("no supervisor answers at {socket}: {reason}", socket = socket.display())]
    Unreachable {
        /// The socket that was tried.
        socket: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The order or request is not accepted.
    #[error("refused: {0}")]
    Refused(String),
    /// Standard output or input failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl CtlError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) | Self::Io(_) => 1,
            Self::Unreachable { .. } => 3,
            Self::Refused(_) => 4,
        }
    }
}

/// Watches and steers a running strata-supervisor.
#[derive(Debug, Parser)]
#[command(name = "strata-ctl", version, after_help = EXIT_CODES_HELP)]
struct Cli {
    /// Control socket of the supervisor
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "state_dir")]
    socket: Option<PathBuf>,
    /// State directory of the supervisor; its socket is control.sock in it
    #[arg(long, global = true, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what the service is doing
    Status(StatusArgs),
    /// Replace the worker; streams go on in the new one
    Recycle {
        /// At once, instead of letting what runs finish first
        #[arg(long)]
        now: bool,
        /// Print the answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop the worker when what runs has finished, and start none until `release`
    Hold {
        /// Print the answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Undo `hold`, and try a worker that is held by a fault again
    Release {
        /// Print the answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Talk to the model: a line in, an answer out
    Chat(chat::ChatArgs),
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// Print the status object as JSON
    #[arg(long)]
    json: bool,
    /// Repeat every second until interrupted
    #[arg(long)]
    watch: bool,
}

/// Runs the command line of this process.
#[must_use]
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let client = Client::new(find_socket(&cli, &environment()));
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&CtlError::Failed(format!("cannot start: {error}"))),
    };
    let result = runtime.block_on(async {
        match cli.command {
            Command::Status(args) => status::run(&client, args.json, args.watch).await,
            Command::Recycle { now, json } => {
                order(&client, "/admin/recycle", &json!({ "now": now }), json).await
            }
            Command::Hold { json } => order(&client, "/admin/hold", &Value::Null, json).await,
            Command::Release { json } => order(&client, "/admin/release", &Value::Null, json).await,
            Command::Chat(args) => chat::run(&client, &args).await,
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output has seen enough.
        Err(CtlError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &CtlError) -> ExitCode {
    // With standard error closed there is nobody left to tell.
    let _ = writeln!(io::stderr(), "strata-ctl: {error}");
    ExitCode::from(error.exit_code())
}

async fn order(client: &Client, path: &str, body: &Value, json: bool) -> Result<(), CtlError> {
    let reply = client.post(path, body).await?;
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{reply}")?;
    } else {
        writeln!(out, "{}", reply["message"].as_str().unwrap_or("done"))?;
    }
    Ok(())
}

/// The socket the flags name, else that of the settings, else that of the system's service.
fn find_socket(cli: &Cli, environment: &BTreeMap<String, String>) -> PathBuf {
    if let Some(socket) = &cli.socket {
        return socket.clone();
    }
    if let Some(state_dir) = &cli.state_dir {
        return state_dir.join(CONTROL_SOCKET);
    }
    let inputs = Inputs { environment: environment.clone(), ..Inputs::default() };
    // A broken configuration is the supervisor's to report; the usual places may still answer.
    let state_dir = Settings::load(&inputs).map_or_else(
        |_| crate::settings::default_state_dir(environment),
        |settings| settings.config.state_dir,
    );
    let usual = control_socket(environment, &state_dir);
    let service = Path::new(SERVICE_SOCKET);
    if !usual.exists() && service.exists() { service.to_owned() } else { usual }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use clap::{CommandFactory as _, Parser as _};

    use super::{Cli, find_socket};

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_name_the_socket_wherever_they_stand() {
        let nothing = BTreeMap::new();
        let cli = Cli::parse_from(["strata-ctl", "status", "--socket", "/a/b.sock"]);
        assert_eq!(find_socket(&cli, &nothing), PathBuf::from("/a/b.sock"));
        let cli = Cli::parse_from(["strata-ctl", "--state-dir", "/s", "recycle", "--now"]);
        assert_eq!(find_socket(&cli, &nothing), PathBuf::from("/s/control.sock"));
        let cli = Cli::parse_from(["strata-ctl", "status"]);
        let user = BTreeMap::from([("STRATA_STATE_DIR".to_owned(), "/mine".to_owned())]);
        assert_eq!(find_socket(&cli, &user), PathBuf::from("/mine/control.sock"));
    }
}

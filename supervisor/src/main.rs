//! The supervisor's program: settings, journal, then [`run`].

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use strata_supervisor::exit::{Exit, StartError};
use strata_supervisor::run::run;
use strata_supervisor::settings::{self, Settings, command};
use strata_supervisor::{journal, text};

/// Threads for connections and the event loop; compute threads are the worker's.
const RUNTIME_THREADS: usize = 2;

fn main() -> ExitCode {
    let matches = command::command().subcommand(tokenize()).get_matches();
    let result = match matches.subcommand() {
        Some(("tokenize", arguments)) => print_tokens(arguments),
        _ => serve(&matches),
    };
    result.unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "strata-supervisor: {error}");
        error.exit.into()
    })
}

fn serve(matches: &ArgMatches) -> Result<ExitCode, StartError> {
    let settings = Settings::load(&command::inputs(matches))?;
    if matches.get_flag("print_config") {
        print(&settings.print())?;
        settings.validate_but_model()?;
        return Ok(ExitCode::SUCCESS);
    }
    settings.validate()?;
    journal::init(&settings.config.log)
        .map_err(|error| StartError::new(Exit::Configuration, error))?;
    settings::warn_of_unknown_variables(&settings::environment());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .enable_all()
        .build()
        .map_err(|error| StartError::new(Exit::Internal, format!("cannot start: {error}")))?;
    let result = runtime.block_on(run(settings.config));
    // A read of the weight file that stands still must not keep the process.
    runtime.shutdown_background();
    result.map(ExitCode::from)
}

fn tokenize() -> Command {
    let path = |name: &'static str| {
        Arg::new(name).required(true).value_name("FILE").value_parser(value_parser!(PathBuf))
    };
    Command::new("tokenize")
        .about("Print the token ids of a text file as the model sees it, one a line")
        .arg(path("weights").long("model").short('m').help("Weight file"))
        .arg(path("text").long("file").short('f').help("Text file, UTF-8"))
        .arg(
            Arg::new("parse_special")
                .long("parse-special")
                .action(ArgAction::SetTrue)
                .help("Take names of control tokens for those tokens"),
        )
}

fn print_tokens(arguments: &ArgMatches) -> Result<ExitCode, StartError> {
    let path = |name| arguments.get_one::<PathBuf>(name).expect("clap requires it");
    let tokens =
        text::tokenize_command(path("weights"), path("text"), arguments.get_flag("parse_special"))
            .map_err(|error| StartError::new(Exit::Model, error.to_string()))?;
    let lines: String = tokens.iter().map(|token| format!("{token}\n")).collect();
    print(&lines)?;
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> Result<(), StartError> {
    let result = std::io::stdout().lock().write_all(text.as_bytes());
    result.map_err(|error| StartError::new(Exit::Internal, format!("standard output: {error}")))
}

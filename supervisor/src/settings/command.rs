//! The command line of `strata-supervisor`: one flag a key, and what is no key.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::keys::{KEYS, KeyKind};
use super::{Inputs, environment};
use crate::exit::EXIT_CODES_HELP;

/// The command without its subcommands.
#[must_use]
pub fn command() -> Command {
    let keys = KEYS.iter().map(|key| {
        let action = if key.kind == KeyKind::List { ArgAction::Append } else { ArgAction::Set };
        let argument = Arg::new(key.name)
            .long(key.flag())
            .value_name(key.placeholder)
            .help(key.help)
            .allow_negative_numbers(true)
            .action(action);
        if key.name == "model" { argument.short('m') } else { argument }
    });
    Command::new("strata-supervisor")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Serves a language model over HTTP and outlives the worker that computes it")
        .after_help(format!(
            "Each key may also stand in the configuration file (`queue_limit = 8`) or in the \
             environment (`STRATA_QUEUE_LIMIT=8`).\nFlags win over the environment, the \
             environment over the file.\n\n{EXIT_CODES_HELP}"
        ))
        .args_override_self(true)
        .args(keys)
        .arg(
            Arg::new("config")
                .long("config")
                .short('c')
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Configuration file [/etc/strata/strata.toml where it exists]"),
        )
        .arg(
            Arg::new("print_config")
                .long("print-config")
                .action(ArgAction::SetTrue)
                .help("Show every key, its value and where it came from, and exit"),
        )
}

/// What a parsed command line, with this process's environment, gives the settings.
#[must_use]
pub fn inputs(matches: &ArgMatches) -> Inputs {
    let flags = KEYS
        .iter()
        .filter_map(|key| {
            let values = matches.try_get_many::<String>(key.name).ok()??;
            Some((key.name, values.cloned().collect()))
        })
        .collect();
    let file = matches.get_one::<PathBuf>("config").cloned();
    Inputs { file, flags, environment: environment() }
}

//! Reads the command line, does the one thing asked, exits with a
//! [`WorkerExit`](shared::fault::WorkerExit).
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use shared::fault::WorkerExit;
use shared::protocol::LINK_FD;
use strata_worker::backend::Cpu;
use strata_worker::cli::{self, Bench, Logits, Perplexity, ToolError};
use strata_worker::engine::{Engine, EngineOptions, Numerics};
use strata_worker::{epitaph, seal, serve};

/// The process that computes. It is started by strata-supervisor; `bench`, `perplexity` and
/// `logits` are for people.
#[derive(Debug, Parser)]
#[command(name = "strata-worker", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve one supervisor over an inherited socket, until either goes.
    Serve {
        /// Descriptor of the socket.
        #[arg(long, default_value_t = LINK_FD)]
        link_fd: i32,
    },
    /// Measure tokens per second.
    Bench(Bench),
    /// Measure how well a model predicts a text.
    Perplexity(Perplexity),
    /// Write every row of logits of a sequence.
    Logits(Logits),
}

fn main() -> ExitCode {
    epitaph::install();
    match Arguments::parse().command {
        Command::Serve { link_fd } => serve(link_fd),
        Command::Bench(bench) => finish(bench.run()),
        Command::Perplexity(perplexity) => finish(perplexity.run()),
        Command::Logits(logits) => finish(logits.run()),
    }
}

fn finish(result: Result<(), ToolError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

fn serve(link_fd: i32) -> ! {
    let stream = seal::take_link(link_fd)
        .unwrap_or_else(|error| epitaph::leave(WorkerExit::Usage, format_args!("{error}")));
    epitaph::install_for_serving();
    seal::volunteer_for_oom();
    seal::name_process();
    let fate = serve::run(stream, |start, progress| {
        let options = EngineOptions {
            header_digest: start.header_digest,
            context_len: start.context_len,
            slots: start.slots,
            prefill_chunk: start.prefill_chunk,
            threads: start.threads,
            instruction_set: std::env::var("STRATA_ISA").ok().filter(|name| !name.is_empty()),
            numerics: Numerics::Fast,
        };
        let engine = Engine::<Cpu>::open(Path::new(&start.model), &options, progress)?;
        cli::warn(engine.info());
        Ok(engine)
    });
    epitaph::leave(fate.exit, format_args!("{}", fate.detail))
}

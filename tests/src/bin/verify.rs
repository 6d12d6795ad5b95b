//! `cargo verify`: every check of this project, in one word.
//!
//! It installs what it needs (the real model, a Python client) into folders of its own, goes on
//! after a failure where later steps do not depend on it, and ends with a table of what ran, how
//! long, what was skipped and why. `cargo verify -- NAME...` runs only the steps so named.
#![expect(clippy::print_stdout, reason = "it is made to be read in a terminal")]

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use strata_tests::{build, model, programs};

/// Lines of a failed step's log that are shown.
const TAIL_LINES: usize = 80;

/// Columns of the line that shows what a step is doing.
const TICKER_COLUMNS: usize = 96;

/// What every test says that cannot run here, followed by the reason.
const SKIP_MARK: &str = "SKIPPED: ";

#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

/// What a step has done.
struct Report {
    name: &'static str,
    outcome: Outcome,
    seconds: f64,
    tests_passed: usize,
    tests_failed: usize,
    /// Tests that said why they did not run.
    skips: Vec<String>,
}

/// One line of the list of steps.
struct Step {
    name: &'static str,
    /// Steps that must have passed.
    needs: &'static [&'static str],
    commands: fn(&Context) -> Result<Vec<Command>, String>,
}

/// What steps know of each other.
struct Context {
    logs: PathBuf,
    model: Option<PathBuf>,
    reports: Vec<Report>,
}

const STEPS: [Step; 11] = [
    Step { name: "format", needs: &[], commands: |_| Ok(vec![cargo("fmt --all --check")]) },
    Step {
        name: "lints",
        needs: &[],
        commands: |_| Ok(vec![cargo("clippy --workspace --all-targets -- -D warnings")]),
    },
    Step { name: "build", needs: &[], commands: |_| Ok(vec![cargo("build --workspace --bins")]) },
    Step { name: "unit tests", needs: &["build"], commands: |context| Ok(unit_tests(context)) },
    Step {
        name: "tidy",
        needs: &[],
        commands: |_| Ok(vec![cargo("test -p strata-tests --test tidy")]),
    },
    Step {
        name: "fake worker",
        needs: &["build"],
        commands: |_| {
            let tests = "--test api --test cli --test lifecycle --test model_files --test streams";
            Ok(vec![cargo(&format!("test -p strata-tests {tests} -- --show-output"))])
        },
    },
    Step {
        name: "chaos",
        needs: &["build"],
        commands: |_| Ok(vec![cargo("test -p strata-tests --test chaos -- --show-output")]),
    },
    Step {
        name: "release build",
        needs: &["build"],
        commands: |_| Ok(vec![cargo("build --release --workspace --bins")]),
    },
    Step {
        name: "real model",
        needs: &["release build", "model"],
        commands: |context| Ok(vec![with_model(context, "real_model")]),
    },
    Step {
        name: "openai client",
        needs: &["release build", "model"],
        commands: |context| Ok(vec![with_model(context, "openai_client")]),
    },
    Step { name: "docs", needs: &[], commands: |_| Ok(vec![docs()]) },
];

/// What is not here yet, said aloud so that nobody takes silence for success.
const ABSENT: [(&str, &str); 1] =
    [("gpu", "there is no CUDA backend yet; nothing of it was checked")];

fn cargo(arguments: &str) -> Command {
    let mut command = build::cargo();
    command.args(arguments.split_whitespace());
    command
}

fn unit_tests(context: &Context) -> Vec<Command> {
    let mut others = cargo("test --workspace --exclude strata-tests -- --show-output");
    if let Some(model) = &context.model {
        others.env("STRATA_TEST_MODEL", model);
    }
    vec![others, cargo("test -p strata-tests --lib --bins -- --show-output")]
}

/// Real weights want optimised programs; the tests themselves need no other build.
fn with_model(context: &Context, test: &str) -> Command {
    let mut command = cargo(&format!("test -p strata-tests --test {test} -- --show-output"));
    command.env(programs::FOLDER_VARIABLE, programs::target().join("release"));
    if let Some(model) = &context.model {
        command.env(model::MODEL_VARIABLE, model);
    }
    command
}

fn docs() -> Command {
    let mut command = cargo("doc --workspace --no-deps");
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

fn main() -> ExitCode {
    // The alias ends in `--`, and a person may write another.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| word != "--").collect();
    let unknown = wanted.iter().find(|name| STEPS.iter().all(|step| step.name != **name));
    if let Some(name) = unknown {
        let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        eprintln!("`{name}` is no step; the steps are: {}", names.join(", "));
        return ExitCode::from(2);
    }
    let logs = programs::target().join("verify");
    if let Err(error) = fs::create_dir_all(&logs) {
        eprintln!("{}: {error}", logs.display());
        return ExitCode::FAILURE;
    }
    let start = Instant::now();
    let mut context = Context { logs, model: None, reports: Vec::new() };
    fetch_model(&mut context);
    for step in &STEPS {
        let is_wanted = wanted.is_empty() || wanted.iter().any(|name| name == step.name);
        if is_wanted {
            run_step(step, &mut context);
        }
    }
    for (name, why) in ABSENT {
        context.push(name, Outcome::Skipped(why.to_owned()), 0.0);
    }
    summarise(&context, start.elapsed().as_secs_f64())
}

impl Context {
    fn push(&mut self, name: &'static str, outcome: Outcome, seconds: f64) {
        let (tests_passed, tests_failed, skips) = (0, 0, Vec::new());
        self.reports.push(Report { name, outcome, seconds, tests_passed, tests_failed, skips });
    }

    /// The first of these steps that ran and did not pass.
    fn missing(&self, needs: &[&'static str]) -> Option<&'static str> {
        let failed = |name: &str| {
            let report = self.reports.iter().find(|report| report.name == name);
            report.is_some_and(|report| report.outcome != Outcome::Passed)
        };
        needs.iter().find(|name| failed(name)).copied()
    }
}

fn fetch_model(context: &mut Context) {
    let start = Instant::now();
    let outcome = match model::fetch() {
        Ok(path) => {
            context.model = Some(path);
            Outcome::Passed
        }
        Err(why) => Outcome::Failed(why),
    };
    announce("model", &outcome, start.elapsed().as_secs_f64());
    context.push("model", outcome, start.elapsed().as_secs_f64());
}

fn run_step(step: &Step, context: &mut Context) {
    if let Some(need) = context.missing(step.needs) {
        let outcome = Outcome::Skipped(format!("the step `{need}` did not pass"));
        announce(step.name, &outcome, 0.0);
        context.push(step.name, outcome, 0.0);
        return;
    }
    let start = Instant::now();
    let path = context.logs.join(format!("{}.log", step.name.replace(' ', "-")));
    let result = (step.commands)(context).and_then(|commands| run_all(commands, &path));
    let seconds = start.elapsed().as_secs_f64();
    let log = fs::read(&path).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let outcome = match result {
        Ok(()) => Outcome::Passed,
        Err(why) => {
            show_tail(&log, &path);
            Outcome::Failed(why)
        }
    };
    announce(step.name, &outcome, seconds);
    let (tests_passed, tests_failed) = count_tests(&log);
    let skips = log.lines().filter_map(|line| line.trim().strip_prefix(SKIP_MARK));
    let mut skips: Vec<String> = skips.map(str::to_owned).collect();
    skips.dedup();
    context.reports.push(Report {
        name: step.name,
        outcome,
        seconds,
        tests_passed,
        tests_failed,
        skips,
    });
}

/// Runs commands in order, all of them, with their output in a log.
fn run_all(commands: Vec<Command>, path: &Path) -> Result<(), String> {
    let mut log = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut failed = Vec::new();
    for mut command in commands {
        let words: Vec<String> =
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let name = format!("cargo {}", words.join(" "));
        let status = run(&mut command, &mut log).map_err(|error| format!("{name}: {error}"))?;
        if !status.success() {
            failed.push(format!("{name} ({status})"));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

fn run(command: &mut Command, log: &mut File) -> std::io::Result<std::process::ExitStatus> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.env("RUST_BACKTRACE", "0").spawn()?;
    let (sender, lines) = channel::<String>();
    let stdout = child.stdout.take().expect("it was asked for");
    let stderr = child.stderr.take().expect("it was asked for");
    let readers = [
        thread::spawn({
            let sender = sender.clone();
            move || read_lines(stdout, |line| sender.send(line).is_ok())
        }),
        thread::spawn(move || read_lines(stderr, |line| sender.send(line).is_ok())),
    ];
    let is_terminal = std::io::stderr().is_terminal();
    for line in lines {
        writeln!(log, "{line}")?;
        if is_terminal {
            let short: String = line.trim().chars().take(TICKER_COLUMNS).collect();
            eprint!("\r\x1b[K{short}");
        }
    }
    if is_terminal {
        eprint!("\r\x1b[K");
    }
    for reader in readers {
        reader.join().expect("a reader does not panic");
    }
    child.wait()
}

fn read_lines(stream: impl std::io::Read, mut take: impl FnMut(String) -> bool) {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        if !take(text) {
            return;
        }
        line.clear();
    }
}

fn show_tail(log: &str, path: &Path) {
    let lines: Vec<&str> = log.lines().collect();
    for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
        println!("    | {line}");
    }
    println!("    the whole log: {}", path.display());
}

fn announce(name: &str, outcome: &Outcome, seconds: f64) {
    let word = match outcome {
        Outcome::Passed => "ok",
        Outcome::Failed(_) => "FAILED",
        Outcome::Skipped(_) => "SKIPPED",
    };
    println!("{name:<14} {word:<8} {seconds:>7.1} s");
}

/// Passed and failed tests in the output of `cargo test`.
fn count_tests(log: &str) -> (usize, usize) {
    let results = log.lines().filter_map(|line| line.trim().strip_prefix("test result: "));
    let number = |line: &str, word: &str| -> usize {
        let parts = line.split([';', '.']).map(str::trim);
        let count = parts.filter_map(|part| part.strip_suffix(word)).next();
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    };
    results.fold((0, 0), |(passed, failed), line| {
        (passed + number(line, "passed"), failed + number(line, "failed"))
    })
}

fn summarise(context: &Context, seconds: f64) -> ExitCode {
    let mut table = String::new();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let (mut tests_passed, mut tests_failed) = (0, 0);
    for report in &context.reports {
        let (word, why) = match &report.outcome {
            Outcome::Passed => ("passed", ""),
            Outcome::Failed(why) => ("FAILED", why.as_str()),
            Outcome::Skipped(why) => ("SKIPPED", why.as_str()),
        };
        match &report.outcome {
            Outcome::Passed => passed += 1,
            Outcome::Failed(_) => failed += 1,
            Outcome::Skipped(_) => skipped += 1,
        }
        tests_passed += report.tests_passed;
        tests_failed += report.tests_failed;
        let tests = match report.tests_passed + report.tests_failed {
            0 => String::new(),
            count => format!("{count} tests"),
        };
        let Report { name, seconds, .. } = report;
        let line = format!("  {name:<14} {word:<8} {seconds:>7.1} s  {tests:>9}  {why}");
        // Writing to a string cannot fail.
        let _ = writeln!(table, "{}", line.trim_end());
        for skip in &report.skips {
            let _ = writeln!(table, "  {:<14} SKIPPED   {skip}", "");
        }
    }
    println!("\n{table}");
    println!("verify: {passed} steps passed, {failed} failed, {skipped} skipped; {seconds:.0} s");
    println!("{tests_passed} passed, {tests_failed} failed");
    if failed == 0 && tests_failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::count_tests;

    #[test]
    fn tests_are_counted_over_all_results() {
        let log = "running 2 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored\n\
                   noise\ntest result: FAILED. 10 passed; 3 failed; 1 ignored; 0 measured\n";
        assert_eq!(count_tests(log), (12, 3));
    }
}

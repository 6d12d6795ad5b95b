//! A supervisor under test: started in a folder of its own, watched, and stopped.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::fake::SCRIPT_VARIABLE;
use crate::http::Client;
use crate::process::{self, TempDir};
use crate::programs;
use crate::sse::{Answer, AnswerStream};
use crate::tiny_model;
use crate::wait::{wait_for, wait_until};

/// How long a start may take, the loading of a small model included.
const START_MAX: Duration = Duration::from_secs(60);

/// Exit code of a supervisor that found its address in use.
const EXIT_LISTEN: i32 = 5;

/// Tries to get a port that nobody takes between its choice and its use.
const PORT_TRIES: u32 = 5;

/// What to start.
#[derive(Debug)]
pub struct Setup {
    worker: &'static str,
    script: String,
    model: Option<PathBuf>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    programs: PathBuf,
    log: Option<OwnedFd>,
}

impl Setup {
    /// A supervisor with a fake worker that follows `script`, on the tiny model.
    #[must_use]
    pub fn fake(script: &str) -> Self {
        Self::new("fake-worker", script, None)
    }

    /// A supervisor with the real worker and a weight file; `None` takes the tiny model.
    #[must_use]
    pub fn real(model: Option<&Path>) -> Self {
        Self::new("strata-worker", "", model.map(Path::to_owned))
    }

    fn new(worker: &'static str, script: &str, model: Option<PathBuf>) -> Self {
        let arguments = ["--threads", "2", "--restart-delay-s", "0.05"].map(str::to_owned).to_vec();
        Self {
            worker,
            script: script.to_owned(),
            model,
            arguments,
            environment: Vec::new(),
            programs: programs::folder(),
            log: None,
        }
    }

    /// Sends the log there; [`Server::log`] is then empty.
    #[must_use]
    pub fn log_to(mut self, sink: impl Into<OwnedFd>) -> Self {
        self.log = Some(sink.into());
        self
    }

    /// Takes the programs from another folder.
    #[must_use]
    pub fn programs(mut self, folder: &Path) -> Self {
        self.programs = folder.to_owned();
        self
    }

    /// Adds a flag with its value; a later one wins over the harness's own.
    #[must_use]
    pub fn flag(mut self, name: &str, value: &str) -> Self {
        if let Some(at) = self.arguments.iter().position(|argument| argument == name) {
            self.arguments.drain(at..at + 2);
        }
        self.arguments.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the supervisor and waits until its API answers; the worker may still be loading.
    ///
    /// # Errors
    ///
    /// If a program is missing or the supervisor ends; with the end of its log.
    pub fn try_start(self) -> Result<Server, String> {
        let mut last = String::new();
        for _ in 0..PORT_TRIES {
            let mut server = self.spawn()?;
            match server.wait_for_api() {
                Ok(()) => return Ok(server),
                Err(Some(EXIT_LISTEN)) => last = server.log(),
                Err(code) => {
                    let log = server.log();
                    return Err(format!("the supervisor did not start ({code:?}):\n{log}"));
                }
            }
        }
        Err(format!("no free port in {PORT_TRIES} tries:\n{last}"))
    }

    /// As [`Setup::try_start`].
    ///
    /// # Panics
    ///
    /// Where it gives an error.
    #[must_use]
    #[track_caller]
    pub fn start(self) -> Server {
        match self.try_start() {
            Ok(server) => server,
            Err(why) => panic!("{why}"),
        }
    }

    /// Starts the supervisor and waits until its worker serves.
    ///
    /// # Panics
    ///
    /// If it does not.
    #[must_use]
    #[track_caller]
    pub fn serve(self) -> Server {
        let server = self.start();
        server.wait_ready();
        server
    }

    fn spawn(&self) -> Result<Server, String> {
        let dir = TempDir::new();
        let model = self.model.clone().unwrap_or_else(|| tiny_model::write(dir.path()));
        let address = free_address();
        let log = match &self.log {
            Some(sink) => sink.try_clone().map(Stdio::from),
            None => File::create(dir.path().join("log")).map(Stdio::from),
        };
        let log = log.map_err(|error| error.to_string())?;
        let output = File::create(dir.path().join("output")).map_err(|error| error.to_string())?;
        let mut command = Command::new(programs::find_in(&self.programs, "strata-supervisor")?);
        command
            .arg("--model")
            .arg(model)
            .args(["--listen", &address.to_string()])
            .arg("--state-dir")
            .arg(dir.path().join("state"))
            .arg("--worker-program")
            .arg(programs::find_in(&self.programs, self.worker)?)
            .args(&self.arguments)
            .env(SCRIPT_VARIABLE, &self.script)
            .env("NO_COLOR", "1")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(log);
        let child = command.spawn().map_err(|error| format!("strata-supervisor: {error}"))?;
        Ok(Server {
            child,
            dir,
            address,
            programs: self.programs.clone(),
            status: None,
            allowed: Vec::new(),
        })
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    listener.local_addr().expect("a bound socket has an address")
}

/// A running supervisor. Dropping it kills it; [`Server::finish`] ends it and checks what it left.
#[derive(Debug)]
pub struct Server {
    child: Child,
    dir: TempDir,
    address: SocketAddr,
    programs: PathBuf,
    status: Option<ExitStatus>,
    allowed: Vec<String>,
}

impl Server {
    /// `Err(code)` if the supervisor ended.
    fn wait_for_api(&mut self) -> Result<(), Option<i32>> {
        wait_for("the API to answer", START_MAX, || {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.status = Some(status);
                return Some(Err(status.code()));
            }
            let answer = self.client().request("GET", "/livez", &[], &[]);
            answer.is_ok_and(|answer| answer.status() == 200).then_some(Ok(()))
        })
    }

    /// Waits until the worker serves.
    ///
    /// # Panics
    ///
    /// If it does not within a minute; shows the log.
    #[track_caller]
    pub fn wait_ready(&self) {
        wait_until("the worker to serve", START_MAX, || {
            self.client().get("/readyz").status() == 200
        });
    }

    /// A client for its API.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Where its API listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its folder; `state` in it is the state directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Everything it has logged, its worker's stderr included.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.dir.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The status object.
    ///
    /// # Panics
    ///
    /// If it cannot be had.
    #[must_use]
    #[track_caller]
    pub fn status(&self) -> Value {
        self.client().get("/status").json()
    }

    /// The process id of the live worker, once there is one.
    ///
    /// # Panics
    ///
    /// If there is none within a minute.
    #[must_use]
    #[track_caller]
    pub fn worker_pid(&self) -> u32 {
        wait_for("a worker", START_MAX, || {
            let pid = self.status()["worker"]["pid"].as_u64()?;
            u32::try_from(pid).ok()
        })
    }

    /// How many workers were replaced.
    #[must_use]
    #[track_caller]
    pub fn recycles(&self) -> u64 {
        self.status()["recycles"]["total"].as_u64().unwrap_or(0)
    }

    /// Sends a signal to the live worker and gives its process id.
    #[track_caller]
    pub fn signal_worker(&self, signal: Signal) -> u32 {
        let pid = self.worker_pid();
        process::signal(pid, signal);
        pid
    }

    /// Allows log lines of level WARN or ERROR that hold `text`.
    pub fn allow(&mut self, text: &str) {
        self.allowed.push(text.to_owned());
    }

    /// Streams a chat answer to its end.
    ///
    /// # Panics
    ///
    /// If it cannot be had.
    #[must_use]
    #[track_caller]
    pub fn chat(&self, body: &Value) -> Answer {
        match self.open_chat(body).and_then(AnswerStream::finish) {
            Ok(answer) => answer,
            Err(why) => panic!("{why}\n{}", self.log()),
        }
    }

    /// Opens a streamed chat answer.
    ///
    /// # Errors
    ///
    /// As [`AnswerStream::open`].
    pub fn open_chat(&self, body: &Value) -> Result<AnswerStream, String> {
        let mut body = body.clone();
        body["stream"] = Value::Bool(true);
        AnswerStream::open(self.client(), "/v1/chat/completions", &body)
    }

    /// Runs `strata-ctl` against this server.
    ///
    /// # Panics
    ///
    /// If it was not built.
    #[must_use]
    pub fn ctl(&self, arguments: &[&str]) -> std::process::Output {
        let program = programs::find_in(&self.programs, "strata-ctl");
        let program = program.unwrap_or_else(|why| panic!("{why}"));
        Command::new(program)
            .arg("--state-dir")
            .arg(self.dir.path().join("state"))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("a built program starts")
    }

    /// Waits until the supervisor has ended.
    ///
    /// # Panics
    ///
    /// If it has not within `deadline`.
    #[track_caller]
    pub fn wait_exit(&mut self, deadline: Duration) -> ExitStatus {
        let status = wait_for("the supervisor's end", deadline, || {
            self.child.try_wait().expect("our own child can be waited for")
        });
        self.status = Some(status);
        status
    }

    /// Checks that nothing is left of earlier workers: one live child at most, and no zombie.
    ///
    /// # Panics
    ///
    /// If there is more.
    #[track_caller]
    pub fn assert_no_leftovers(&self) {
        let pid = self.pid();
        wait_until("dead workers to be reaped", Duration::from_secs(10), || {
            let children = process::children(pid);
            children.len() <= 1 && children.iter().all(|child| child.state != 'Z')
        });
    }

    /// Stops the supervisor as systemd would and checks what it leaves: exit code 0, no worker, no
    /// log line of level WARN or ERROR that was not allowed.
    ///
    /// # Panics
    ///
    /// If one of these does not hold.
    #[track_caller]
    pub fn finish(mut self) {
        self.assert_no_leftovers();
        let workers = process::children(self.pid());
        process::signal(self.pid(), Signal::SIGTERM);
        let status = self.wait_exit(Duration::from_secs(60));
        let log = self.log();
        assert_eq!((status.code(), status.signal()), (Some(0), None), "the end:\n{log}");
        for worker in workers {
            assert!(!process::is_alive(worker.pid), "worker {} was left behind", worker.pid);
        }
        let unlisted = self.unlisted(&log);
        assert!(unlisted.is_empty(), "unlisted log lines:\n{}", unlisted.join("\n"));
    }

    fn unlisted<'a>(&self, log: &'a str) -> Vec<&'a str> {
        log.lines()
            .filter(|line| {
                let level = line.split_whitespace().nth(1);
                matches!(level, Some("WARN" | "ERROR"))
                    || line.contains("panicked at")
                    || line.contains(" WARN ")
                    || line.contains("ERROR ")
            })
            .filter(|line| !self.allowed.iter().any(|allowed| line.contains(allowed)))
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.status.is_none() {
            // It may have ended by itself just now; then there is nothing left to kill.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(60)..];
            eprintln!("--- end of the supervisor's log ---\n{}", tail.join("\n"));
        }
    }
}

/// A chat request with one user message at temperature 0.
#[must_use]
pub fn question(text: &str, max_tokens: u32) -> Value {
    json!({
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
    })
}

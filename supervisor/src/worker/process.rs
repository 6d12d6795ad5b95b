//! Starts, kills and reaps the worker process.
//!
//! Three kinds of threads, all of which may block and none of which the event loop waits for:
//!
//! * the *spawner*, one for the whole program and as long as it lives: the death signal a worker
//!   asks for (`PR_SET_PDEATHSIG`) fires when the thread that spawned it ends, so that thread
//!   must never end before the program does;
//! * one *waiter* per process, which reaps it and reports its end;
//! * one *listener* per process, which logs its stderr, line by line, bounded and rate-limited.
//!
//! Invariants:
//!
//! * A signal is sent only while the process is not reaped (both happen under one lock), so a
//!   process id that was given to somebody else is never hit.
//! * A `Handle` cannot be dropped without the process being killed; the waiter reaps it.
#![expect(unsafe_code, reason = "pre_exec: the block says why it is sound")]

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc as blocking;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::signal::{Signal, killpg};
use nix::sys::socket::sockopt::SndBuf;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use shared::config::Config;
use shared::fault::WorkerExit;
use shared::ids::Incarnation;
use shared::protocol::LINK_FD;
use tokio::sync::mpsc;

use super::exit::Exit;
use super::link::Transport;
use super::stderr;

/// How long a dead worker's stderr may stay open (held by a child of its own) before its last
/// words are taken as they are.
const STDERR_GRACE: Duration = Duration::from_millis(500);

/// Kernel send buffer of each end of the link. Frames of tokens and acknowledgements are tiny; a
/// long prompt goes through in pieces.
const LINK_BUFFER_BYTES: usize = 256 * 1024;

/// The environment variable that holds the API keys, which are none of the worker's business.
const API_KEYS_VARIABLE: &str = "STRATA_API_KEYS";

/// What became of a launch.
#[derive(Debug)]
pub enum Report {
    /// There is a process.
    Launched {
        /// The process.
        handle: Box<dyn Kill>,
        /// Our end of the link.
        transport: Transport,
    },
    /// There is none; says why.
    NotLaunched(String),
    /// The process ended and was reaped.
    Exited {
        /// How.
        exit: Exit,
        /// Its last words; may be empty.
        epitaph: String,
    },
}

/// Where reports of a life go: few per life, so the channel needs no bound.
pub type Reports = mpsc::UnboundedSender<(Incarnation, Report)>;

/// Starts workers. [`Launcher`] in the service; a script in tests.
pub trait Launch: Send {
    /// Starts a process for this life. Returns at once; what became of it is reported: either
    /// `NotLaunched`, or `Launched` and later `Exited`.
    fn launch(&mut self, incarnation: Incarnation, reports: Reports);
}

/// A running worker.
pub trait Kill: Send + std::fmt::Debug {
    /// Its process id, if it is a process.
    fn pid(&self) -> Option<u32>;
    /// Kills it, without waiting for its end. No effect on one that ended.
    fn kill(&self);
}

/// Where the worker's program is: as configured, else beside this program, else in `PATH`.
#[must_use]
pub fn program(config: &Config) -> PathBuf {
    const NAME: &str = "strata-worker";
    if !config.worker_program.as_os_str().is_empty() {
        return config.worker_program.clone();
    }
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(NAME));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(NAME))
}

/// Starts real worker processes.
#[derive(Debug)]
pub struct Launcher {
    program: PathBuf,
}

impl Launcher {
    /// For the program of the configuration.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self { program: program(config) }
    }
}

impl Launch for Launcher {
    fn launch(&mut self, incarnation: Incarnation, reports: Reports) {
        let program = self.program.clone();
        let job = move || launch(&program, incarnation, &reports);
        spawner().send(Box::new(job)).expect("the spawner lives as long as the program");
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The one thread that spawns, started at the first use and never ended.
fn spawner() -> &'static blocking::Sender<Job> {
    static SPAWNER: OnceLock<blocking::Sender<Job>> = OnceLock::new();
    SPAWNER.get_or_init(|| {
        let (sender, jobs) = blocking::channel::<Job>();
        thread::Builder::new()
            .name("strata-spawner".to_owned())
            .spawn(move || {
                for job in jobs {
                    job();
                }
            })
            .expect("a program that cannot start one thread cannot serve");
        sender
    })
}

fn launch(program: &Path, incarnation: Incarnation, reports: &Reports) {
    let report = |report| {
        // Nobody listens any more: the handle in the report is dropped, which kills.
        reports.send((incarnation, report)).ok();
    };
    match spawn(program) {
        Err(error) => {
            let program = program.display();
            report(Report::NotLaunched(format!(
                "starting `{program}`: {error} (`worker_program` says where it is)"
            )));
        }
        Ok((child, link)) => {
            let process = Arc::new(Process::new(child));
            report(Report::Launched {
                handle: Box::new(Handle(Arc::clone(&process))),
                transport: Transport::Unix(link),
            });
            let reports = reports.clone();
            let started = thread::Builder::new()
                .name(format!("strata-waiter-{incarnation}"))
                .spawn(move || wait(&process, incarnation, &reports));
            if let Err(error) = started {
                // The handle's kill still works; without a waiter the end is reported here.
                tracing::error!(strata_incarnation = incarnation.0, %error, "no waiter thread");
                report(Report::Exited { exit: Exit::Lost, epitaph: String::new() });
            }
        }
    }
}

/// Starts the process with one end of a socket pair at [`LINK_FD`].
fn spawn(program: &Path) -> io::Result<(Child, UnixStream)> {
    occupy_link_fd()?;
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    for end in [&ours, &theirs] {
        setsockopt(end, SndBuf, &LINK_BUFFER_BYTES)?;
    }
    let ours = UnixStream::from(ours);
    ours.set_nonblocking(true)?;
    let mut command = Command::new(program);
    command
        .arg("serve")
        .env_remove(API_KEYS_VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // A group of its own: a terminal's ctrl-C is for the supervisor, which then drains.
        .process_group(0);
    let their_fd = theirs.as_raw_fd();
    let parent = libc::pid_t::try_from(std::process::id()).map_err(io::Error::other)?;
    // SAFETY: between fork and exec only async-signal-safe functions may run; `prepare_child`
    // calls prctl, getppid, dup2 and fcntl, and builds errors without allocating. `their_fd` is
    // open until after `spawn`, since `theirs` is dropped below.
    unsafe {
        command.pre_exec(move || prepare_child(their_fd, parent));
    }
    let child = command.spawn()?;
    drop(theirs);
    Ok((child, ours))
}

/// Runs in the child between fork and exec.
fn prepare_child(link: RawFd, parent: libc::pid_t) -> io::Result<()> {
    // SAFETY: prctl with PR_SET_PDEATHSIG takes a signal number and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: getppid has no preconditions.
    if unsafe { libc::getppid() } != parent {
        // The parent died before the signal was asked for.
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: both are descriptor numbers; dup2 leaves the new one open across exec.
    if link != LINK_FD && unsafe { libc::dup2(link, LINK_FD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: clearing the flags of a descriptor that the lines above made sure of.
    if unsafe { libc::fcntl(LINK_FD, libc::F_SETFD, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Makes sure that descriptor [`LINK_FD`] is open in this process, so that the pipe on which
/// `Command` reports a failed exec is never given that number and overwritten in the child.
fn occupy_link_fd() -> io::Result<()> {
    static KEPT: OnceLock<OwnedFd> = OnceLock::new();
    if KEPT.get().is_some() {
        return Ok(());
    }
    let null = std::fs::File::open("/dev/null")?;
    let lowest = fcntl(&null, FcntlArg::F_DUPFD_CLOEXEC(LINK_FD))?;
    // SAFETY: fcntl just made this descriptor, and nothing else knows it.
    let lowest = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(lowest) };
    if lowest.as_raw_fd() == LINK_FD {
        KEPT.get_or_init(|| lowest);
    }
    Ok(())
}

/// A child process and whether it is still ours to signal.
#[derive(Debug)]
struct Process {
    pid: u32,
    /// `None` once it was reaped.
    child: Mutex<Option<Child>>,
}

impl Process {
    fn new(child: Child) -> Self {
        Self { pid: child.id(), child: Mutex::new(Some(child)) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn id(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.pid).expect("Linux process ids are below 2^22"))
    }

    fn kill(&self) {
        let child = self.lock();
        if child.is_some() {
            // Not reaped, so the process group still has its leader, and the number is its own.
            // An error says that every member is dead already.
            killpg(self.id(), Signal::SIGKILL).ok();
        }
    }

    /// Waits for the end without reaping, then reaps under the lock.
    fn wait(&self) -> io::Result<ExitStatus> {
        loop {
            match waitid(Id::Pid(self.id()), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => break,
            }
        }
        let mut child = self.lock();
        let mut ended = child.take().ok_or_else(|| io::Error::other("reaped by somebody else"))?;
        ended.wait()
    }
}

/// The event loop's hold on a process.
#[derive(Debug)]
struct Handle(Arc<Process>);

impl Kill for Handle {
    fn pid(&self) -> Option<u32> {
        Some(self.0.pid)
    }

    fn kill(&self) {
        self.0.kill();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// The waiter thread: from the launch to the report of the end.
fn wait(process: &Process, incarnation: Incarnation, reports: &Reports) {
    let oom_kills = oom_kills();
    let stderr = process.lock().as_mut().and_then(|child| child.stderr.take());
    let (said, epitaph) = blocking::channel();
    let listener = thread::Builder::new()
        .name(format!("strata-stderr-{incarnation}"))
        .spawn(move || listen(stderr, incarnation, &said));
    let exit = match process.wait() {
        Ok(status) => exit_of(status, self::oom_kills() > oom_kills),
        Err(error) => {
            tracing::error!(strata_incarnation = incarnation.0, %error, "waiting for the worker");
            Exit::Lost
        }
    };
    let epitaph = match listener {
        Ok(_) => epitaph.recv_timeout(STDERR_GRACE).unwrap_or_default(),
        Err(_) => String::new(),
    };
    reports.send((incarnation, Report::Exited { exit, epitaph })).ok();
}

fn listen(stderr: Option<impl Read>, incarnation: Incarnation, said: &blocking::Sender<String>) {
    if let Some(stderr) = stderr {
        let epitaph = stderr::follow(stderr, incarnation);
        said.send(epitaph).ok();
    }
}

/// Processes that Linux has killed for want of memory since it booted, in any control group; 0 if
/// it does not say. An exit status cannot tell such a SIGKILL from an operator's.
///
/// *Source*: `oom_kill` of `/proc/vmstat`, since Linux 4.13.
fn oom_kills() -> u64 {
    let counters = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = counters.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// What an exit status means. `was_oom` says whether Linux killed some process for want of memory
/// while this one lived.
fn exit_of(status: ExitStatus, was_oom: bool) -> Exit {
    if let Some(code) = status.code() {
        return WorkerExit::from_code(code).map_or(Exit::Unknown(code), Exit::Known);
    }
    match status.signal() {
        Some(number) => match Signal::try_from(number) {
            Ok(Signal::SIGKILL) if was_oom => Exit::OomKilled,
            Ok(signal) => Exit::Signal(signal.as_str().to_owned()),
            Err(_) => Exit::Signal(format!("SIG{number}")),
        },
        None => Exit::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::{Exit, exit_of, launch};
    use crate::worker::process::Report;
    use shared::fault::WorkerExit;
    use shared::ids::Incarnation;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use tokio::sync::mpsc;

    #[test]
    fn exit_statuses_have_names() {
        let code = |code: i32| exit_of(ExitStatus::from_raw(code << 8), false);
        let signal = |number, was_oom| exit_of(ExitStatus::from_raw(number), was_oom);
        assert_eq!(code(11), Exit::Known(WorkerExit::Model));
        assert_eq!(code(77), Exit::Unknown(77));
        assert_eq!(signal(9, false), Exit::Signal("SIGKILL".to_owned()));
        assert_eq!(signal(9, true), Exit::OomKilled);
        assert_eq!(signal(64, true), Exit::Signal("SIG64".to_owned()));
    }

    /// Removes the script's folder when the test ends.
    struct Folder(std::path::PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    /// Runs a shell script in the worker's place.
    fn run(name: &str, script: &str) -> (Folder, mpsc::UnboundedReceiver<(Incarnation, Report)>) {
        let name_of_folder = format!("strata-process-{}-{name}", std::process::id());
        let directory = std::env::temp_dir().join(name_of_folder);
        std::fs::create_dir_all(&directory).unwrap();
        let program = directory.join(name);
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (sender, reports) = mpsc::unbounded_channel();
        launch(&program, Incarnation(1), &sender);
        (Folder(directory), reports)
    }

    fn exit(report: Report) -> (Exit, String) {
        match report {
            Report::Exited { exit, epitaph } => (exit, epitaph),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_process_has_its_link_at_the_fixed_descriptor_and_its_last_words_are_kept() {
        let (_folder, mut reports) =
            run("speaker", "echo one >&2; [ -S /dev/fd/3 ] && echo two >&2; exit 15");
        let (_, launched) = reports.blocking_recv().unwrap();
        assert!(matches!(launched, Report::Launched { .. }));
        let (exit, epitaph) = exit(reports.blocking_recv().unwrap().1);
        assert_eq!((exit, epitaph.as_str()), (Exit::Known(WorkerExit::Panic), "two"));
    }

    #[test]
    fn a_dropped_handle_is_a_dead_process() {
        let (_folder, mut reports) = run("sleeper", "exec sleep 600");
        let (_, launched) = reports.blocking_recv().unwrap();
        drop(launched);
        let (exit, _) = exit(reports.blocking_recv().unwrap().1);
        assert_eq!(exit, Exit::Signal("SIGKILL".to_owned()));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let (sender, mut reports) = mpsc::unbounded_channel();
        launch(std::path::Path::new("/nowhere/strata-worker"), Incarnation(1), &sender);
        let (_, report) = reports.blocking_recv().unwrap();
        let Report::NotLaunched(why) = report else { panic!("{report:?}") };
        assert!(why.contains("/nowhere/strata-worker") && why.contains("worker_program"), "{why}");
    }
}

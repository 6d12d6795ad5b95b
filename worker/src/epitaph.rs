//! Last words: one line on stderr, and the end of the process.
//!
//! The counterpart is the supervisor's reader of the worker's stderr. An epitaph is one line of
//! at most [`EPITAPH_BYTES_MAX`] bytes, written with one `write(2)` from a fixed buffer, without
//! allocation or locks, since it must also work in a signal handler and after heap damage.
//!
//! ```text
//! strata-worker epitaph: incarnation=7 exit=panic(15) detail="index out of bounds at ..."
//! strata-worker epitaph: incarnation=7 exit=signal signal=SIGSEGV address=0x0
//! ```
//!
//! Invariants:
//!
//! * A process has at most one epitaph: the first thread that dies owns the buffer.
//! * The detail is shortened to fit and holds no control characters, so it stays one line.
#![expect(unsafe_code, reason = "signal handlers and _exit; each block says why it is sound")]

use std::cell::UnsafeCell;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use shared::fault::WorkerExit;
use shared::ids::Incarnation;
use shared::limits::EPITAPH_BYTES_MAX;

/// What every epitaph starts with.
pub const PREFIX: &str = "strata-worker epitaph:";

/// `write(2)` of at most this many bytes to a pipe is atomic (POSIX `PIPE_BUF` on Linux).
const PIPE_WRITE_ATOMIC: usize = 4096;
const _: () = assert!(EPITAPH_BYTES_MAX <= PIPE_WRITE_ATOMIC);

/// The incarnation for the epitaph; 0 until `Start` has named it.
static INCARNATION: AtomicU64 = AtomicU64::new(0);

/// The first thread that speaks, 0 before. Never cleared: nobody dies twice.
static SPEAKER: AtomicI32 = AtomicI32::new(0);

/// How long a later thread lets the first one finish, since either ends the process. Threads of
/// one pass often meet the same fault at once.
const SPEAKER_MS_MAX: libc::c_int = 1000;

struct Buffer(UnsafeCell<Line>);

// SAFETY: the cell is reached only in `speak`, by the one thread that put its id into SPEAKER,
// and SPEAKER never changes again.
unsafe impl Sync for Buffer {}

static BUFFER: Buffer = Buffer(UnsafeCell::new(Line::new()));

/// One line in a fixed buffer. The last byte is kept for the newline.
struct Line {
    bytes: [u8; EPITAPH_BYTES_MAX],
    length: usize,
}

impl Line {
    const fn new() -> Self {
        Self { bytes: [0; EPITAPH_BYTES_MAX], length: 0 }
    }

    /// Ends the line and gives its bytes.
    fn finish(&mut self) -> &[u8] {
        self.bytes[self.length] = b'\n';
        &self.bytes[..=self.length]
    }
}

impl Write for Line {
    /// Takes what fits, never a part of a character, and reports the rest as written: a shortened
    /// epitaph is better than none.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let character = if character.is_control() { ' ' } else { character };
            let room = EPITAPH_BYTES_MAX - 1 - self.length;
            if character.len_utf8() > room {
                break;
            }
            let end = self.length + character.len_utf8();
            character.encode_utf8(&mut self.bytes[self.length..end]);
            self.length = end;
        }
        Ok(())
    }
}

/// An exit as an epitaph spells it: `non_finite(13)`.
struct ExitName(WorkerExit);

impl fmt::Display for ExitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.0.name(), self.0.code())
    }
}

/// Names the life whose epitaph this process will write.
pub fn set_incarnation(incarnation: Incarnation) {
    INCARNATION.store(incarnation.0, Ordering::Relaxed);
}

/// Writes the epitaph and ends the process at once, whatever its other threads do. A clean exit
/// has no epitaph.
pub fn leave(exit: WorkerExit, detail: fmt::Arguments<'_>) -> ! {
    if exit != WorkerExit::Clean {
        speak(format_args!("exit={} {detail}", ExitName(exit)));
    }
    exit_now(i32::from(exit.code()))
}

/// Installs what makes every death of this process speak: the panic hook (also for panics on
/// compute threads, which would otherwise leave the others waiting) and the fatal signals.
///
/// The handlers run on the alternate stacks that the standard library gives to the main thread
/// and to every thread it spawns, so that a stack overflow can speak too.
pub fn install() {
    std::panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("a panic without a message");
        match info.location() {
            Some(place) => {
                leave(WorkerExit::Panic, format_args!("at={place} detail=\"{message}\""))
            }
            None => leave(WorkerExit::Panic, format_args!("detail=\"{message}\"")),
        }
    }));
    let fatal = SigAction::new(
        SigHandler::SigAction(on_fatal_signal),
        SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK,
        SigSet::empty(),
    );
    for signal in [Signal::SIGBUS, Signal::SIGSEGV, Signal::SIGILL, Signal::SIGFPE, Signal::SIGABRT]
    {
        act(signal, &fatal);
    }
}

/// How a serving worker meets the signals that ask a process to go.
///
/// SIGINT and SIGHUP from a terminal reach the whole process group; what follows is the
/// supervisor's decision, so the worker ignores them, and the signals that mean nothing. SIGTERM
/// means leave, and since a worker holds nothing that must be saved, leaving is exiting.
pub fn install_for_serving() {
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2] {
        act(signal, &ignore);
    }
    let leave = SigHandler::Handler(on_terminate);
    act(Signal::SIGTERM, &SigAction::new(leave, SaFlags::SA_ONSTACK, SigSet::empty()));
}

fn act(signal: Signal, action: &SigAction) {
    // SAFETY: the handlers passed here (`on_fatal_signal`, `on_terminate`) call only functions
    // that signal-safety(7) allows and touch only atomics and the buffer that SPEAKER guards.
    unsafe { sigaction(signal, action) }.expect("the signal is one that may be caught");
}

/// Speaks once per process. A later thread is silent and gives the first one time to end the
/// process; a thread that dies while it speaks is silent and goes on dying.
fn speak(what: fmt::Arguments<'_>) {
    let own = nix::unistd::gettid().as_raw();
    match SPEAKER.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        Err(speaker) if speaker == own => return,
        Err(_) => {
            // SAFETY: poll(2) of no descriptors only waits; it is async-signal-safe.
            unsafe { libc::poll(std::ptr::null_mut(), 0, SPEAKER_MS_MAX) };
            return;
        }
    }
    // SAFETY: only the thread that put its id into SPEAKER comes here, once, so this is the only
    // reference to the buffer in the life of the process.
    let line = unsafe { &mut *BUFFER.0.get() };
    let incarnation = INCARNATION.load(Ordering::Relaxed);
    // Neither `Line` nor the pieces written here return an error.
    let _ = write!(line, "{PREFIX} incarnation={incarnation} {what}");
    let bytes = line.finish();
    // SAFETY: `bytes` is initialised and lives for the call; write(2) is async-signal-safe. A
    // failure is ignored since nobody is left to be told.
    unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}

fn exit_now(code: i32) -> ! {
    // SAFETY: _exit(2) takes any code, is async-signal-safe and does not return. It runs no exit
    // handlers, which is wanted: other threads may be in the middle of anything.
    unsafe { libc::_exit(code) }
}

/// Where a signal came from.
#[derive(Clone, Copy)]
enum Origin {
    /// An access of this thread to an address.
    Fault(usize),
    /// A process, perhaps this one (`abort`).
    Process(libc::pid_t),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(address) => write!(f, "address={address:#x}"),
            Self::Process(pid) if u32::try_from(*pid) == Ok(std::process::id()) => {
                f.write_str("raised_by=itself")
            }
            Self::Process(pid) => write!(f, "sent_by={pid}"),
        }
    }
}

extern "C" fn on_terminate(_signal: libc::c_int) {
    exit_now(i32::from(WorkerExit::Clean.code()));
}

extern "C" fn on_fatal_signal(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: Linux passes a valid siginfo to an SA_SIGINFO handler. Of its union, si_addr is set
    // if the code is positive (a fault of this thread) and si_pid otherwise (a process sent it);
    // reading the other one would give other plain bytes.
    let origin = unsafe {
        match (*info).si_code {
            1.. => Origin::Fault((*info).si_addr() as usize),
            _ => Origin::Process((*info).si_pid()),
        }
    };
    // One that a process sent is no news of the weights.
    if signal == libc::SIGBUS && matches!(origin, Origin::Fault(_)) {
        leave(
            WorkerExit::WeightsUnreadable,
            format_args!(
                "signal=SIGBUS {origin} detail=\"a mapped weight file could not be \
                 read: it was truncated or its disk fails\""
            ),
        );
    }
    let name = match signal {
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGILL => "SIGILL",
        libc::SIGFPE => "SIGFPE",
        libc::SIGBUS => "SIGBUS",
        _ => "SIGABRT",
    };
    speak(format_args!("exit=signal signal={name} {origin}"));
    // The default action is put back, and the signal is blocked until this handler returns; raised
    // again it then ends the process as if no handler had been there, so that the supervisor reads
    // the true signal from the exit status.
    // SAFETY: signal(2) with SIG_DFL and raise(3) take any signal number that was just caught, and
    // both are async-signal-safe.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::{ExitName, Line};
    use shared::fault::WorkerExit;
    use shared::limits::EPITAPH_BYTES_MAX;
    use std::fmt::Write;

    #[test]
    fn a_long_detail_is_shortened_to_one_bounded_line() {
        let mut line = Line::new();
        write!(line, "a\nb\u{1b}[31m{}", "é".repeat(EPITAPH_BYTES_MAX)).unwrap();
        let bytes = line.finish();
        assert!(bytes.len() <= EPITAPH_BYTES_MAX);
        let text = std::str::from_utf8(bytes).unwrap();
        assert!(text.starts_with("a b [31mé"), "{text}");
        assert_eq!(text.matches('\n').count(), 1);
        assert!(text.ends_with("é\n"));
    }

    #[test]
    fn exits_are_spelled_as_in_status() {
        for exit in WorkerExit::ALL {
            let json = serde_json::to_string(&exit).unwrap();
            let spelled = ExitName(exit).to_string();
            assert_eq!(spelled, format!("{}({})", json.trim_matches('"'), exit.code()));
        }
    }
}

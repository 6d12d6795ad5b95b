//! Where log lines go: stderr, as long as somebody takes them.
//!
//! Whoever reads our stderr may be gone, stopped, or a full disk. None of that is a reason to end
//! or to wait: a line that cannot be written is dropped and counted, and the next that can be says
//! how many are missing.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing_subscriber::fmt::MakeWriter;

/// How long a reader that is slow, but not known to be stuck, is waited for.
const READER_MS_MAX: u16 = 20;

/// A pipe that is ready takes this much at once (POSIX `PIPE_BUF` on Linux).
const PIECE_BYTES: usize = 4096;

/// A sink of lines that never fails and hardly ever waits.
#[derive(Debug)]
pub(super) struct Sink<F> {
    state: Mutex<State<F>>,
}

#[derive(Debug)]
struct State<F> {
    out: F,
    lost: u64,
    /// The last line broke off, so the next must begin with a newline.
    is_torn: bool,
}

impl<F: AsFd + Write> Sink<F> {
    /// A sink that writes to `out`.
    pub(super) fn new(out: F) -> Self {
        Self { state: Mutex::new(State { out, lost: 0, is_torn: false }) }
    }
}

impl<F: AsFd + Write> State<F> {
    fn line(&mut self, line: &[u8]) {
        if self.lost > 0 || self.is_torn {
            let end = if self.is_torn { "\n" } else { "" };
            let note = format!("{end} WARN log lines were lost strata_lost={}\n", self.lost);
            if !self.put(note.as_bytes()) {
                self.lost += 1;
                return;
            }
            (self.lost, self.is_torn) = (0, false);
        }
        if !self.put(line) {
            self.lost += 1;
        }
    }

    /// Whether all of it was taken.
    fn put(&mut self, bytes: &[u8]) -> bool {
        let wait = if self.lost == 0 { READER_MS_MAX } else { 0 };
        for (index, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            let is_ready = is_ready(self.out.as_fd(), wait);
            if !is_ready || self.out.write_all(piece).is_err() {
                // What a write that failed has left is not known.
                self.is_torn |= is_ready || index > 0;
                return false;
            }
        }
        true
    }
}

fn is_ready(out: BorrowedFd<'_>, wait_ms: u16) -> bool {
    let mut fds = [PollFd::new(out, PollFlags::POLLOUT)];
    // An interrupted wait counts as a line that was not taken.
    matches!(poll(&mut fds, PollTimeout::from(wait_ms)), Ok(1..))
}

/// One event's access to the sink.
#[derive(Debug)]
pub(super) struct Line<'a, F>(MutexGuard<'a, State<F>>);

impl<F: AsFd + Write> Write for Line<'_, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.line(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a, F: AsFd + Write + 'a> MakeWriter<'a> for Sink<F> {
    type Writer = Line<'a, F>;

    fn make_writer(&'a self) -> Self::Writer {
        // Half a line of a thread that panicked harms nobody.
        Line(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::{Read as _, Write as _, pipe};

    use tracing_subscriber::fmt::MakeWriter as _;

    use super::Sink;

    fn say<F: std::os::fd::AsFd + std::io::Write>(sink: &Sink<F>, line: &str) {
        sink.make_writer().write_all(line.as_bytes()).unwrap();
    }

    #[test]
    fn a_full_disk_and_a_reader_that_went_cost_lines_only() {
        let full: File = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let full = Sink::new(full);
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let broken = Sink::new(writer);
        for _ in 0..3 {
            say(&full, "line\n");
            say(&broken, "line\n");
        }
        assert_eq!(full.state.lock().unwrap().lost, 3);
        assert_eq!(broken.state.lock().unwrap().lost, 3);
    }

    #[test]
    fn a_reader_that_stands_still_is_not_waited_for_and_hears_how_much_it_missed() {
        let (mut reader, writer) = pipe().unwrap();
        let sink = Sink::new(writer);
        let line = format!("{}\n", "x".repeat(999));
        for _ in 0..500 {
            say(&sink, &line);
        }
        let lost = sink.state.lock().unwrap().lost;
        assert!(lost > 0);
        let mut bytes = vec![0; 200_000];
        assert!(reader.read(&mut bytes).unwrap() > 0);
        say(&sink, "after\n");
        drop(sink);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert!(rest.ends_with(&format!("strata_lost={lost}\nafter\n")), "{rest}");
    }
}

//! Follows a worker's stderr: bounded lines, into the journal at a bounded rate, the last kept.

use std::io::Read;

use shared::ids::Incarnation;
use shared::limits::STDERR_LINE_BYTES_MAX;

use crate::journal::RateLimit;

/// What the worker's last words start with (`worker/src/epitaph.rs`).
const EPITAPH_PREFIX: &str = "strata-worker epitaph:";

/// Reads to the end, logging each line. Returns the epitaph, or else the last line.
pub(super) fn follow(mut stderr: impl Read, incarnation: Incarnation) -> String {
    let mut lines = Lines::default();
    let mut epitaph = Epitaph::default();
    let mut limit = RateLimit::default();
    let mut buffer = [0; 4096];
    let mut on_line = |line: &str| {
        epitaph.see(line);
        if let Some(suppressed) = limit.admit(std::time::Instant::now()) {
            tracing::info!(
                strata_incarnation = incarnation.0,
                strata_suppressed = suppressed,
                "worker: {line}"
            );
        }
    };
    loop {
        match stderr.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => lines.feed(&buffer[..count], &mut on_line),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    lines.finish(&mut on_line);
    epitaph.last
}

/// Remembers the line that says why the worker died.
#[derive(Debug, Default)]
struct Epitaph {
    last: String,
    is_epitaph: bool,
}

impl Epitaph {
    fn see(&mut self, line: &str) {
        let words = line.strip_prefix(EPITAPH_PREFIX);
        if line.is_empty() || (self.is_epitaph && words.is_none()) {
            return;
        }
        self.is_epitaph = words.is_some();
        words.unwrap_or(line).trim().clone_into(&mut self.last);
    }
}

/// Cuts bytes into lines of at most [`STDERR_LINE_BYTES_MAX`]; what is longer is dropped.
#[derive(Debug, Default)]
struct Lines {
    line: Vec<u8>,
}

impl Lines {
    fn feed(&mut self, mut bytes: &[u8], on_line: &mut impl FnMut(&str)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.keep(&bytes[..end]);
            self.flush(on_line);
            bytes = &bytes[end + 1..];
        }
        self.keep(bytes);
    }

    fn finish(&mut self, on_line: &mut impl FnMut(&str)) {
        if !self.line.is_empty() {
            self.flush(on_line);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = STDERR_LINE_BYTES_MAX - self.line.len();
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn flush(&mut self, on_line: &mut impl FnMut(&str)) {
        on_line(String::from_utf8_lossy(&self.line).trim_end());
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{Lines, follow};
    use shared::ids::Incarnation;
    use shared::limits::STDERR_LINE_BYTES_MAX;

    #[test]
    fn lines_are_whole_however_they_arrive_and_bounded() {
        let text = format!("one\n\nthr\u{e9}e\n{}\nlast", "x".repeat(3 * STDERR_LINE_BYTES_MAX));
        for step in [1, 2, 7, 5000, text.len()] {
            let mut seen = Vec::new();
            let mut lines = Lines::default();
            for part in text.as_bytes().chunks(step) {
                lines.feed(part, &mut |line| seen.push(line.to_owned()));
            }
            lines.finish(&mut |line| seen.push(line.to_owned()));
            assert_eq!(seen.len(), 5);
            assert_eq!(&seen[..3], ["one", "", "thr\u{e9}e"]);
            assert_eq!(seen[3].len(), STDERR_LINE_BYTES_MAX);
            assert_eq!(seen[4], "last");
        }
    }

    #[test]
    fn the_epitaph_is_preferred_to_what_follows_it() {
        let say = |text: &str| follow(text.as_bytes(), Incarnation(1));
        assert_eq!(say("a\nb\n"), "b");
        assert_eq!(say("a\nstrata-worker epitaph: exit=panic(15)\nb\n"), "exit=panic(15)");
        assert_eq!(say(""), "");
    }
}

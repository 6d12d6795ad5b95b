//! The worker's end of the link: framed, non-blocking, bounded in both directions.
//!
//! The other end is the supervisor's `worker/link.rs`. Invariants:
//!
//! * Nothing here waits, except [`Link::wait`] (for the supervisor's next word) and
//!   [`Link::flush_within`] (for a farewell, with a deadline).
//! * Frames leave in the order in which they were sent. While more than `OUTGOING_BYTES_MAX`
//!   wait to leave, nothing more is read, so neither direction grows without bound.
//! * After a fault the link is not used again.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use shared::frame::{self, FrameReader};
use shared::ids::Incarnation;
use shared::protocol::{FromWorker, Message, ToWorker};

/// Bytes that may wait to leave before reading stops.
const OUTGOING_BYTES_MAX: usize = 1024 * 1024;

/// Bytes taken from the stream at once.
const READ_BYTES: usize = 64 * 1024;

/// Why the link cannot be used any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkFault {
    /// The other end is closed: the supervisor is gone.
    Gone(String),
    /// The other end sent what this protocol does not allow.
    Protocol(String),
}

/// One end of the socket pair, with the frames that are under way.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    reader: FrameReader,
    outgoing: Vec<u8>,
    /// Bytes of `outgoing` that have left.
    left: usize,
    /// Learnt from the first frame; every later one must carry it.
    incarnation: Option<Incarnation>,
}

impl Link {
    /// Takes the stream and makes it non-blocking.
    ///
    /// # Errors
    ///
    /// [`LinkFault::Gone`] if the stream cannot be used.
    pub fn new(stream: UnixStream) -> Result<Self, LinkFault> {
        stream.set_nonblocking(true).map_err(|error| LinkFault::Gone(error.to_string()))?;
        Ok(Self {
            stream,
            reader: FrameReader::default(),
            outgoing: Vec::new(),
            left: 0,
            incarnation: None,
        })
    }

    /// The worker life this link belongs to, once a frame has named it.
    #[must_use]
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation
    }

    /// The next whole frame, or `None` if it has not arrived yet. Never blocks.
    ///
    /// # Errors
    ///
    /// [`LinkFault`] if the stream is closed, has lost its framing, or speaks to another life.
    pub fn receive(&mut self) -> Result<Option<ToWorker>, LinkFault> {
        loop {
            let frame = self.reader.next_message::<Message<ToWorker>>();
            match frame.map_err(|error| LinkFault::Protocol(error.to_string()))? {
                Some(message) => return self.admit(message).map(Some),
                None if self.is_clogged() => return Ok(None),
                None => {}
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(LinkFault::Gone("the link was closed".into())),
                Ok(length) => self.reader.extend(&bytes[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(LinkFault::Gone(format!("reading the link: {error}"))),
            }
        }
    }

    fn admit(&mut self, message: Message<ToWorker>) -> Result<ToWorker, LinkFault> {
        let own = *self.incarnation.get_or_insert(message.incarnation);
        if message.incarnation == own {
            return Ok(message.body);
        }
        Err(LinkFault::Protocol(format!(
            "a message for incarnation {} reached incarnation {own}",
            message.incarnation
        )))
    }

    /// Queues a frame; [`Link::flush`] sends it.
    ///
    /// # Panics
    ///
    /// If the message is larger than a frame: what a worker says is bounded far below.
    pub fn queue(&mut self, body: FromWorker) {
        let incarnation = self.incarnation.unwrap_or_default();
        frame::write(&Message { incarnation, body }, &mut self.outgoing)
            .expect("a worker's messages are small: a few tokens, or one line of text");
    }

    /// Queues a frame that may be dropped, unless earlier frames still wait: a supervisor that
    /// does not read is told the newest state later, not every state.
    pub fn queue_unless_busy(&mut self, body: FromWorker) {
        if self.is_flushed() {
            self.queue(body);
        }
    }

    /// Sends what the stream takes now. Never blocks.
    ///
    /// # Errors
    ///
    /// [`LinkFault::Gone`] if the other end is closed.
    pub fn flush(&mut self) -> Result<(), LinkFault> {
        while !self.is_flushed() {
            match self.stream.write(&self.outgoing[self.left..]) {
                Ok(length) => self.left += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(LinkFault::Gone(format!("writing the link: {error}"))),
            }
        }
        self.outgoing.clear();
        self.left = 0;
        Ok(())
    }

    /// Blocks until the link can go on: a frame (or the end) arrives, or bytes can leave.
    ///
    /// # Errors
    ///
    /// [`LinkFault::Gone`] if the descriptor cannot be waited for.
    pub fn wait(&mut self) -> Result<(), LinkFault> {
        self.wait_at_most(PollTimeout::NONE)?;
        self.flush()
    }

    /// Sends everything queued, unless that takes longer than `limit`. For last words.
    pub fn flush_within(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.flush().is_ok() && !self.is_flushed() {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            if left.is_zero() || self.wait_at_most(timeout).is_err() {
                return;
            }
        }
    }

    fn wait_at_most(&self, timeout: PollTimeout) -> Result<(), LinkFault> {
        let mut events = PollFlags::empty();
        if !self.is_clogged() {
            events |= PollFlags::POLLIN;
        }
        if !self.is_flushed() {
            events |= PollFlags::POLLOUT;
        }
        match poll(&mut [PollFd::new(self.stream.as_fd(), events)], timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(LinkFault::Gone(format!("waiting for the link: {error}"))),
        }
    }

    fn is_flushed(&self) -> bool {
        self.left == self.outgoing.len()
    }

    fn is_clogged(&self) -> bool {
        self.outgoing.len() - self.left > OUTGOING_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::{Link, LinkFault};
    use shared::frame;
    use shared::ids::Incarnation;
    use shared::protocol::{FromWorker, Message, ToWorker};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    fn ping(incarnation: u64, number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let body = ToWorker::Ping(number);
        frame::write(&Message { incarnation: Incarnation(incarnation), body }, &mut bytes).unwrap();
        bytes
    }

    fn pair() -> (Link, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Link::new(ours).unwrap(), theirs)
    }

    #[test]
    fn frames_before_the_end_are_read_before_the_end_is_noticed() {
        let (mut link, mut peer) = pair();
        assert_eq!(link.receive(), Ok(None));
        peer.write_all(&[ping(4, 1), ping(4, 2)].concat()).unwrap();
        drop(peer);
        assert_eq!(link.receive(), Ok(Some(ToWorker::Ping(1))));
        assert_eq!(link.receive(), Ok(Some(ToWorker::Ping(2))));
        assert!(matches!(link.receive(), Err(LinkFault::Gone(_))));
        assert_eq!(link.incarnation(), Some(Incarnation(4)));
    }

    #[test]
    fn a_message_of_another_life_and_broken_framing_are_faults() {
        let (mut link, mut peer) = pair();
        peer.write_all(&[ping(4, 1), ping(5, 2)].concat()).unwrap();
        assert_eq!(link.receive(), Ok(Some(ToWorker::Ping(1))));
        assert!(matches!(link.receive(), Err(LinkFault::Protocol(_))));

        let (mut link, mut peer) = pair();
        peer.write_all(&[0xff; 64]).unwrap();
        assert!(matches!(link.receive(), Err(LinkFault::Protocol(_))));
    }

    #[test]
    fn a_peer_that_does_not_read_stops_our_reading_and_loses_nothing() {
        let (mut link, mut peer) = pair();
        let mut sent = 0;
        while !link.is_clogged() {
            link.queue(FromWorker::Pong(sent));
            link.flush().unwrap();
            sent += 1;
        }
        let before = link.outgoing.len();
        link.queue_unless_busy(FromWorker::Pong(u64::MAX));
        assert_eq!(link.outgoing.len(), before, "a droppable frame is dropped while others wait");
        peer.write_all(&ping(0, 1)).unwrap();
        assert_eq!(link.receive(), Ok(None), "nothing is read while too much waits to leave");

        let reading = std::thread::spawn(move || {
            let mut reader = frame::FrameReader::default();
            let mut bytes = [0; 4096];
            for number in 0..sent {
                let message = loop {
                    match reader.next_message::<Message<FromWorker>>().unwrap() {
                        Some(message) => break message,
                        None => {
                            let length = peer.read(&mut bytes).unwrap();
                            reader.extend(&bytes[..length]);
                        }
                    }
                };
                assert_eq!(message.body, FromWorker::Pong(number));
            }
        });
        link.flush_within(Duration::from_secs(30));
        reading.join().unwrap();
        assert_eq!(link.receive(), Ok(Some(ToWorker::Ping(1))));
    }

    #[test]
    fn writing_to_a_closed_peer_is_a_fault() {
        let (mut link, peer) = pair();
        drop(peer);
        link.queue(FromWorker::Pong(1));
        assert!(matches!(link.flush(), Err(LinkFault::Gone(_))));
    }
}

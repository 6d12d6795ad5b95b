//! The framed socket to one worker life: two tasks, one per direction.
//!
//! The other end is `worker/src/serve/link.rs`; the order of messages is written in
//! [`shared::protocol`]. The event loop never waits for either task.
//!
//! Invariants:
//!
//! * After a half-written frame nothing more is written: the writer ends, and says so.
//! * The outbox is bounded. One that is full, or a write that makes no progress within the
//!   deadline while nothing arrives either, means that the worker hangs.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shared::frame::{self, FrameReader};
use shared::ids::Incarnation;
use shared::protocol::{FromWorker, Message, ToWorker};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::JoinHandle;

/// Messages that may wait to be written. A life has at most `SLOTS_MAX` sessions, each with one
/// submission, one end and one acknowledgement per turn of the event loop.
const OUTBOX_MAX: usize = 1024;

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;

/// Messages encoded into one write.
const WRITE_BATCH: usize = 64;

/// Our end of a link, before it is served.
#[derive(Debug)]
pub enum Transport {
    /// A socket, not blocking.
    Unix(UnixStream),
    /// A pipe within this process, for tests.
    Memory(tokio::io::DuplexStream),
}

/// What a link brings.
#[derive(Debug)]
pub enum Incoming {
    /// A message.
    Message(Message<FromWorker>),
    /// The worker closed its end; says how.
    Closed(String),
    /// The worker sent what is no frame.
    Garbled(String),
    /// The worker takes nothing, and sends nothing.
    Stuck,
}

/// Hands what arrives to the event loop. Waits if that is busy.
pub trait Inbox: Clone + Send + 'static {
    /// Delivers; false if nobody listens any more.
    fn deliver(&self, incoming: Incoming) -> impl Future<Output = bool> + Send;
}

/// The event loop's hold on a link. Dropping it ends both tasks.
#[derive(Debug)]
pub struct Link {
    incarnation: Incarnation,
    outbox: mpsc::Sender<ToWorker>,
    tasks: [JoinHandle<()>; 2],
}

/// Why a message cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsendable {
    /// The outbox is full: the worker hangs.
    Full,
    /// Nothing is written any more: the worker's end is on its way, or already reported.
    Closed,
}

impl Link {
    /// Starts to serve the link of a life.
    ///
    /// # Errors
    ///
    /// If the socket cannot be registered with the runtime.
    pub fn open(
        transport: Transport,
        incarnation: Incarnation,
        write_deadline: Duration,
        inbox: impl Inbox,
    ) -> std::io::Result<Self> {
        let (outbox, messages) = mpsc::channel(OUTBOX_MAX);
        let writer = Writer { incarnation, write_deadline, received: Arc::default() };
        let tasks = match transport {
            Transport::Unix(stream) => {
                let (read, write) = tokio::net::UnixStream::from_std(stream)?.into_split();
                writer.serve(read, write, messages, inbox)
            }
            Transport::Memory(stream) => {
                let (read, write) = tokio::io::split(stream);
                writer.serve(read, write, messages, inbox)
            }
        };
        Ok(Self { incarnation, outbox, tasks })
    }

    /// The life this link belongs to.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Puts a message into the outbox.
    ///
    /// # Errors
    ///
    /// [`Unsendable`] if it is full, or the writer ended.
    pub fn send(&self, message: ToWorker) -> Result<(), Unsendable> {
        self.outbox.try_send(message).map_err(|error| match error {
            TrySendError::Full(_) => Unsendable::Full,
            TrySendError::Closed(_) => Unsendable::Closed,
        })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

struct Writer {
    incarnation: Incarnation,
    write_deadline: Duration,
    /// Counts reads, so that the writer can tell a busy worker from a hung one.
    received: Arc<AtomicU64>,
}

impl Writer {
    fn serve(
        self,
        read: impl AsyncRead + Send + Unpin + 'static,
        write: impl AsyncWrite + Send + Unpin + 'static,
        messages: mpsc::Receiver<ToWorker>,
        inbox: impl Inbox,
    ) -> [JoinHandle<()>; 2] {
        let reader = read_all(read, Arc::clone(&self.received), inbox.clone());
        [tokio::spawn(reader), tokio::spawn(self.write_all(write, messages, inbox))]
    }

    /// The writing task.
    async fn write_all(
        self,
        mut stream: impl AsyncWrite + Unpin,
        mut messages: mpsc::Receiver<ToWorker>,
        inbox: impl Inbox,
    ) {
        let mut batch = Vec::new();
        let mut bytes = Vec::new();
        while messages.recv_many(&mut batch, WRITE_BATCH).await > 0 {
            bytes.clear();
            for body in batch.drain(..) {
                let message = Message { incarnation: self.incarnation, body };
                if let Err(error) = frame::write(&message, &mut bytes) {
                    // Admission bounds every message far below the frame's limit.
                    tracing::error!(%error, "a message for the worker cannot be encoded");
                    inbox.deliver(Incoming::Garbled(format!("encoding: {error}"))).await;
                    return;
                }
            }
            // A broken pipe is the reader's to report, once it has read what was sent before.
            match self.write(&mut stream, &bytes).await {
                Ok(true) => {}
                Ok(false) => {
                    inbox.deliver(Incoming::Stuck).await;
                    return;
                }
                Err(_) => return,
            }
            // A long prompt's buffer is not kept.
            bytes.shrink_to(READ_BYTES);
        }
    }

    /// Writes all; false if the worker took nothing and said nothing within the deadline.
    async fn write(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
        mut bytes: &[u8],
    ) -> std::io::Result<bool> {
        while !bytes.is_empty() {
            let before = self.received.load(Ordering::Relaxed);
            match tokio::time::timeout(self.write_deadline, stream.write(bytes)).await {
                Ok(Ok(0)) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(Ok(count)) => bytes = &bytes[count..],
                Ok(Err(error)) => return Err(error),
                Err(_) if self.received.load(Ordering::Relaxed) != before => {}
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// The reading task.
async fn read_all(mut stream: impl AsyncRead + Unpin, received: Arc<AtomicU64>, inbox: impl Inbox) {
    let mut frames = FrameReader::default();
    let mut buffer = vec![0; READ_BYTES];
    let end = loop {
        match stream.read(&mut buffer).await {
            Ok(0) => break Incoming::Closed("end of stream".to_owned()),
            Ok(count) => frames.extend(&buffer[..count]),
            Err(error) => break Incoming::Closed(error.to_string()),
        }
        received.fetch_add(1, Ordering::Relaxed);
        loop {
            match frames.next_message() {
                Ok(None) => break,
                Ok(Some(message)) => {
                    if !inbox.deliver(Incoming::Message(message)).await {
                        return;
                    }
                }
                Err(error) => {
                    inbox.deliver(Incoming::Garbled(error.to_string())).await;
                    return;
                }
            }
        }
    };
    inbox.deliver(end).await;
}

#[cfg(test)]
mod tests {
    use super::{Inbox, Incoming, Link, OUTBOX_MAX, Transport, Unsendable};
    use shared::ids::Incarnation;
    use shared::protocol::{FromWorker, Message, ToWorker};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::sync::mpsc;

    #[derive(Clone)]
    struct Box(mpsc::Sender<Incoming>);

    impl Inbox for Box {
        async fn deliver(&self, incoming: Incoming) -> bool {
            self.0.send(incoming).await.is_ok()
        }
    }

    fn open(capacity: usize) -> (Link, DuplexStream, mpsc::Receiver<Incoming>) {
        let (ours, theirs) = tokio::io::duplex(capacity);
        let (sender, inbox) = mpsc::channel(8);
        let deadline = Duration::from_secs(30);
        let link =
            Link::open(Transport::Memory(ours), Incarnation(3), deadline, Box(sender)).unwrap();
        (link, theirs, inbox)
    }

    fn frame(message: &Message<FromWorker>) -> Vec<u8> {
        let mut bytes = Vec::new();
        shared::frame::write(message, &mut bytes).unwrap();
        bytes
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_sent_before_the_end_arrives_before_the_end() {
        let (_link, mut theirs, mut inbox) = open(1024);
        let pong = Message { incarnation: Incarnation(3), body: FromWorker::Pong(9) };
        theirs.write_all(&frame(&pong)).await.unwrap();
        theirs.write_all(&frame(&pong)[..3]).await.unwrap();
        drop(theirs);
        assert!(matches!(inbox.recv().await, Some(Incoming::Message(message)) if message == pong));
        assert!(matches!(inbox.recv().await, Some(Incoming::Closed(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn garbage_is_told_from_an_end() {
        let (_link, mut theirs, mut inbox) = open(1024);
        theirs.write_all(&[0xff; 64]).await.unwrap();
        assert!(matches!(inbox.recv().await, Some(Incoming::Garbled(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_reads_nothing_is_stuck_but_one_that_speaks_is_busy() {
        let (link, mut theirs, mut inbox) = open(8);
        link.send(ToWorker::Ping(u64::MAX)).unwrap();
        let pong = frame(&Message { incarnation: Incarnation(3), body: FromWorker::Pong(1) });
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_secs(20)).await;
            theirs.write_all(&pong).await.unwrap();
            assert!(matches!(inbox.recv().await, Some(Incoming::Message(_))));
        }
        assert!(matches!(inbox.recv().await, Some(Incoming::Stuck)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_outbox_is_bounded() {
        let (link, mut theirs, _inbox) = open(8);
        let sent = (0..2 * OUTBOX_MAX).take_while(|_| link.send(ToWorker::Leave).is_ok()).count();
        assert_eq!(sent, OUTBOX_MAX);
        assert_eq!(link.send(ToWorker::Leave), Err(Unsendable::Full));
        let mut byte = [0];
        theirs.read_exact(&mut byte).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_pipe_is_no_full_outbox() {
        let (link, theirs, mut inbox) = open(8);
        drop(theirs);
        link.send(ToWorker::Ping(1)).unwrap();
        assert!(matches!(inbox.recv().await, Some(Incoming::Closed(_))));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(link.send(ToWorker::Ping(2)), Err(Unsendable::Closed));
    }
}

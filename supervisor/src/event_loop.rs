//! The one task that owns all state, and the handle to it.
//!
//! Everything that happens becomes an `Event` in one queue. The loop takes what has arrived,
//! asks the pure functions of [`crate::worker`], [`crate::session`] and [`crate::replay`] what
//! follows, and does it. It never waits for the worker, for a client, or for a lock that somebody
//! holds across an await.
//!
//! # Layout
//!
//! * `request`: what clients hand in and get back.
//! * `service`: the state, and the turn of the loop.
//! * `clients`: requests, readers that leave, operators' orders.
//! * `messages`: what the worker says.
//! * `lives`: the worker's processes: start, loss, end.
//! * `publish`: the status.

mod clients;
mod life;
mod lives;
mod messages;
mod publish;
mod request;
mod service;

use std::fmt;
use std::sync::Arc;

use shared::config::Config;
use shared::ids::{Incarnation, SessionId, TokenId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::status::{Status, StatusCell};
use crate::text::Text;
use crate::worker::link::{Inbox, Incoming};
use crate::worker::process::{Launch, Launcher, Report};

pub use request::{Control, ControlReply, NewRequest, Rejection, Ticket};

use service::{Channels, Service};

/// Events that may wait. Clients and the link wait when it is full; the loop never does.
const EVENTS_MAX: usize = 1024;

/// How tokens become text; [`Text`] in the service, something small in tests.
pub trait Vocabulary: Send + Sync {
    /// Tokens that end a sequence.
    fn end_tokens(&self) -> &[TokenId];
    /// A fresh detokenizer.
    fn detokenizer(self: Arc<Self>) -> Box<dyn TokenText>;
}

/// The text of one token sequence, as it grows.
pub trait TokenText: Send {
    /// Appends the whole code points that `token` completes.
    fn push(&mut self, token: TokenId, out: &mut String);
    /// Appends what is left at the end, broken or not.
    fn finish(&mut self, out: &mut String);
}

impl Vocabulary for Text {
    fn end_tokens(&self) -> &[TokenId] {
        Self::end_tokens(self)
    }

    fn detokenizer(self: Arc<Self>) -> Box<dyn TokenText> {
        Box::new(Self::detokenizer(&self))
    }
}

impl TokenText for crate::text::Detokenizer {
    fn push(&mut self, token: TokenId, out: &mut String) {
        Self::push(self, token, out);
    }

    fn finish(&mut self, out: &mut String) {
        Self::finish(self, out);
    }
}

/// What the event loop is started with.
pub struct CoreOptions {
    /// The configuration.
    pub config: Config,
    /// Tokens to text.
    pub vocabulary: Arc<dyn Vocabulary>,
    /// Name the API gives the model.
    pub model_name: String,
    /// Architecture from the weight file's header.
    pub arch: String,
    /// Digest of that header; a life that finds another one must not serve.
    pub header_digest: [u8; 32],
}

impl fmt::Debug for CoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoreOptions")
            .field("config", &self.config)
            .field("model_name", &self.model_name)
            .field("arch", &self.arch)
            .finish_non_exhaustive()
    }
}

/// Everything that can happen to the loop, apart from time.
#[derive(Debug)]
enum Event {
    /// A client hands in a request.
    Submit { request: NewRequest, reply: oneshot::Sender<Result<Ticket, Rejection>> },
    /// An operator gives an order.
    Control { command: Control, reply: oneshot::Sender<Result<ControlReply, String>> },
    /// A reader was dropped before its log's end.
    ReaderGone(SessionId),
    /// A worker's link brought something.
    Link { incarnation: Incarnation, incoming: Incoming },
    /// A worker's process came or went.
    Process { incarnation: Incarnation, report: Report },
    /// The service is to stop; `at_once` without waiting for streams.
    Stop { at_once: bool },
}

/// Delivers what one link brings.
#[derive(Debug, Clone)]
struct LinkInbox {
    incarnation: Incarnation,
    events: mpsc::Sender<Event>,
}

impl Inbox for LinkInbox {
    async fn deliver(&self, incoming: Incoming) -> bool {
        let event = Event::Link { incarnation: self.incarnation, incoming };
        self.events.send(event).await.is_ok()
    }
}

/// The handle of the event loop; cheap to clone.
#[derive(Debug, Clone)]
pub struct Core {
    events: mpsc::Sender<Event>,
    stop: Arc<watch::Sender<u32>>,
    status: Arc<StatusCell>,
}

impl Core {
    /// Starts the event loop, which starts the first worker. Must be called in a tokio runtime.
    /// The task ends after [`Core::drain`], when the worker is reaped and every log is ended.
    #[must_use]
    pub fn start(options: CoreOptions) -> (Self, JoinHandle<()>) {
        let launcher = Box::new(Launcher::new(&options.config));
        Self::start_with(options, launcher)
    }

    /// As [`Core::start`], with workers from somewhere else.
    #[must_use]
    pub fn start_with(options: CoreOptions, launcher: Box<dyn Launch>) -> (Self, JoinHandle<()>) {
        let (events, queue) = mpsc::channel(EVENTS_MAX);
        let (reports, report_queue) = mpsc::unbounded_channel();
        let (gone, gone_queue) = mpsc::unbounded_channel();
        let (stop, stops) = watch::channel(0);
        let channels = Channels { events: events.clone(), reports, gone };
        let service = Service::new(options, launcher, channels);
        let status = service.status_cell();
        let queues = Queues { events: queue, reports: report_queue, gone: gone_queue, stops };
        let task = tokio::spawn(run(service, queues));
        (Self { events, stop: Arc::new(stop), status }, task)
    }

    /// Hands in a request.
    ///
    /// # Errors
    ///
    /// A [`Rejection`] if it cannot be accepted now; nothing was computed.
    ///
    /// # Cancel safety
    ///
    /// A request whose submission is given up is cancelled.
    pub async fn submit(&self, request: NewRequest) -> Result<Ticket, Rejection> {
        let (reply, answer) = oneshot::channel();
        // The loop ends only when the service stops.
        self.events
            .send(Event::Submit { request, reply })
            .await
            .map_err(|_| Rejection::Draining)?;
        answer.await.unwrap_or(Err(Rejection::Draining))
    }

    /// The status now. Never waits on the event loop.
    #[must_use]
    pub fn status(&self) -> Arc<Status> {
        self.status.read()
    }

    /// Carries out an operator's order. Returns when it is accepted, not when it is done.
    ///
    /// # Errors
    ///
    /// Why the order makes no sense now, in words.
    pub async fn control(&self, command: Control) -> Result<ControlReply, String> {
        let stopping = || "the service is stopping".to_owned();
        let (reply, answer) = oneshot::channel();
        self.events.send(Event::Control { command, reply }).await.map_err(|_| stopping())?;
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Stops the service: refuses new requests and waits for streams in flight, at most for the
    /// configured time. A second call ends them at once. Await the loop's task for the end.
    pub fn drain(&self) {
        self.stop.send_modify(|calls| *calls += 1);
    }
}

/// The receiving ends.
#[derive(Debug)]
struct Queues {
    events: mpsc::Receiver<Event>,
    reports: mpsc::UnboundedReceiver<(Incarnation, Report)>,
    gone: mpsc::UnboundedReceiver<SessionId>,
    stops: watch::Receiver<u32>,
}

/// Events taken in one turn.
const TURN_MAX: usize = 64;

/// The loop: wait, take what there is, act, publish; until the service has stopped.
async fn run(mut service: Service, mut queues: Queues) {
    service.begin();
    let mut turn = Vec::with_capacity(TURN_MAX);
    let timer = tokio::time::sleep_until(service.next_wake());
    tokio::pin!(timer);
    while !service.is_over() {
        // An earlier time is set at once; a later one when the timer fires, since the deadline of
        // a busy worker moves with every token.
        let wake = service.next_wake();
        if wake < timer.deadline() || timer.is_elapsed() {
            timer.as_mut().reset(wake);
        }
        // In this order, so that what a worker said counts before its deadline does.
        tokio::select! {
            biased;
            count = queues.events.recv_many(&mut turn, TURN_MAX) => {
                debug_assert!(count > 0, "the service keeps a sender");
            }
            Some((incarnation, report)) = queues.reports.recv() => {
                turn.push(Event::Process { incarnation, report });
            }
            Some(session) = queues.gone.recv() => turn.push(Event::ReaderGone(session)),
            Ok(()) = queues.stops.changed() => {
                let calls = *queues.stops.borrow_and_update();
                turn.push(Event::Stop { at_once: calls > 1 });
            }
            () = &mut timer => {}
        }
        service.set_now();
        for event in turn.drain(..) {
            service.on_event(event);
        }
        service.settle();
    }
}

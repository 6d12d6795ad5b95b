//! The connections of one listener: how many there are, what each is doing, and which has to go
//! when there is no room for another.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::Instant;

/// How often a full house is looked at again while nobody in it can be asked to leave.
const FULL_RETRY: Duration = Duration::from_millis(50);

/// What a connection is doing. The first goes first when room is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Nothing: it sends no request, or not yet a whole head.
    Idle,
    /// It sends the body of a request.
    Sending,
    /// It waits for an answer, or takes one.
    Answered,
}

/// What one connection is doing, and since when.
#[derive(Debug)]
pub(super) struct Activity(Mutex<(Phase, Instant)>);

impl Activity {
    fn new() -> Self {
        Self(Mutex::new((Phase::Idle, Instant::now())))
    }

    /// The phase and its beginning.
    pub(super) fn read(&self) -> (Phase, Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: Phase) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (phase, Instant::now());
    }

    /// The body of a request is read or given up.
    fn leave_sending(&self) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now.0 == Phase::Sending {
            *now = (Phase::Answered, Instant::now());
        }
    }
}

/// The connections of one listener. Dropping it cuts them.
#[derive(Debug)]
pub(super) struct Crowd {
    max: usize,
    tasks: JoinSet<()>,
    places: HashMap<Id, (Arc<Activity>, AbortHandle)>,
}

impl Crowd {
    /// An empty one with room for `max`.
    pub(super) fn new(max: usize) -> Self {
        Self { max, tasks: JoinSet::new(), places: HashMap::new() }
    }

    /// Adds a connection. Call [`Crowd::make_room`] first.
    pub(super) fn add<F>(&mut self, connection: impl FnOnce(Arc<Activity>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let activity = Arc::new(Activity::new());
        let abort = self.tasks.spawn(connection(Arc::clone(&activity)));
        self.places.insert(abort.id(), (activity, abort));
    }

    /// Returns when there is room for one more. In a full house the connection that has done
    /// nothing for the longest time is cut; if none is idle, the one that has been sending its
    /// request for the longest. Who waits for an answer is never cut.
    ///
    /// # Cancel safety
    ///
    /// Yes.
    pub(super) async fn make_room(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            self.forget(ended);
        }
        while self.tasks.len() >= self.max {
            let reads = self.places.values().map(|(activity, abort)| (activity.read(), abort));
            let first = reads.min_by_key(|(read, _)| *read);
            if let Some(((Phase::Idle | Phase::Sending, _), abort)) = first {
                abort.abort();
            }
            let ended = tokio::time::timeout(FULL_RETRY, self.tasks.join_next_with_id()).await;
            if let Ok(Some(ended)) = ended {
                self.forget(ended);
            }
        }
    }

    /// Waits for all connections to end by themselves.
    pub(super) async fn leave(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    fn forget(&mut self, ended: Result<(Id, ()), tokio::task::JoinError>) {
        let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
        self.places.remove(&id);
    }
}

/// The routes, telling what the connection is doing.
#[derive(Debug)]
pub(super) struct Observed {
    routes: TowerToHyperService<Router>,
    activity: Arc<Activity>,
}

impl Observed {
    /// Tells `activity`.
    pub(super) fn new(routes: Router, activity: Arc<Activity>) -> Self {
        Self { routes: TowerToHyperService::new(routes), activity }
    }
}

impl Service<Request<Incoming>> for Observed {
    type Response = Response<Told<Body>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let activity = Arc::clone(&self.activity);
        let is_whole = request.body().is_end_stream();
        activity.enter(if is_whole { Phase::Answered } else { Phase::Sending });
        let told = Arc::clone(&activity);
        let request = request.map(|body| Told { body, activity: told, then: Phase::Answered });
        let answer = self.routes.call(request);
        Box::pin(async move {
            let response = answer.await?;
            Ok(response.map(|body| Told { body, activity, then: Phase::Idle }))
        })
    }
}

/// A body whose end changes the phase.
#[derive(Debug)]
pub(super) struct Told<B> {
    body: B,
    activity: Arc<Activity>,
    then: Phase,
}

impl<B> Drop for Told<B> {
    fn drop(&mut self) {
        match self.then {
            Phase::Answered => self.activity.leave_sending(),
            phase => self.activity.enter(phase),
        }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Told<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

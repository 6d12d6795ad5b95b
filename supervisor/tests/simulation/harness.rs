//! A service over scripted workers, and clients that check what they read.

use std::sync::Arc;
use std::time::Duration;

use shared::config::Config;
use shared::ids::{Position, TokenId};
use shared::protocol::Sampling;
use strata_supervisor::event_loop::{Core, CoreOptions, NewRequest, Rejection, Ticket};
use strata_supervisor::session::log::{LogReader, Outcome, Record};
use strata_supervisor::status::{ServiceState, Status};
use tokio::task::JoinHandle;

use super::model::{self, Letters};
use super::worker::{SLOTS, World};

/// A service under test.
pub(crate) struct Service {
    pub(crate) core: Core,
    pub(crate) world: World,
    task: JoinHandle<()>,
}

/// The configuration the tests start from.
pub(crate) fn config() -> Config {
    Config {
        model: "scripted.gguf".into(),
        slots: SLOTS,
        queue_limit: 1000,
        failures_max: 1000,
        ..Config::default()
    }
}

impl Service {
    pub(crate) fn start(world: World, config: Config) -> Self {
        let options = CoreOptions {
            config,
            vocabulary: Arc::new(Letters),
            model_name: "letters".to_owned(),
            arch: "scripted".to_owned(),
            header_digest: [0; 32],
        };
        let (core, task) = Core::start_with(options, Box::new(world.clone()));
        Self { core, world, task }
    }

    /// A service that serves.
    pub(crate) async fn serving(world: World, config: Config) -> Self {
        let service = Self::start(world, config);
        service.wait_for(|status| status.state == ServiceState::Serving).await;
        service
    }

    /// Waits, in simulated time, until the status is as wanted.
    pub(crate) async fn wait_for(&self, is_so: impl Fn(&Status) -> bool) -> Arc<Status> {
        for _ in 0..200_000 {
            let status = self.core.status();
            if is_so(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("never came: {:#?}", self.core.status());
    }

    /// Submits, as a client that follows `Retry-After`.
    pub(crate) async fn submit(&self, request: &NewRequest) -> Ticket {
        submit(&self.core, request).await
    }

    /// Submits, reads to the end, and checks the answers against an undisturbed run's.
    pub(crate) async fn ask(&self, request: NewRequest) {
        ask(self.core.clone(), request).await;
    }

    /// Stops the service and checks that nothing is left.
    pub(crate) async fn stop(self) {
        self.core.drain();
        self.over().await;
    }

    /// Waits for the end of a service that was told to stop.
    pub(crate) async fn over(self) {
        self.task.await.unwrap();
        assert_eq!(self.world.alive(), 0, "a process is left");
        let status = self.core.status();
        let requests = &status.requests;
        assert_eq!((requests.active, requests.queued), (0, 0), "{status:#?}");
        assert_eq!(
            requests.total,
            requests.finished + requests.failed + requests.cancelled,
            "{status:#?}"
        );
    }
}

pub(crate) async fn submit(core: &Core, request: &NewRequest) -> Ticket {
    loop {
        match core.submit(request.clone()).await {
            Ok(ticket) => return ticket,
            Err(
                Rejection::QueueFull { retry_after_s, .. }
                | Rejection::Loading { retry_after_s, .. }
                | Rejection::Degraded { retry_after_s, .. },
            ) => tokio::time::sleep(Duration::from_secs(retry_after_s.into())).await,
            Err(other) => panic!("{other}"),
        }
    }
}

pub(crate) async fn ask(core: Core, request: NewRequest) {
    let ticket = submit(&core, &request).await;
    for (choice, mut reader) in ticket.readers.into_iter().enumerate() {
        let prompt_len = request.prompts[choice / request.choices.len()].len();
        let read = read(&mut reader, prompt_len, usize::MAX).await;
        let (tokens, text, outcome) = model::expected(&request, choice);
        assert_eq!((&read.text, &read.outcome), (&text, &Some(outcome)));
        assert_eq!(read.tokens, tokens);
    }
}

/// What a client read.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) text: String,
    pub(crate) outcome: Option<Outcome>,
}

/// Reads to the end, or until that many tokens were read.
pub(crate) async fn read(reader: &mut LogReader, prompt_len: usize, tokens_max: usize) -> Read {
    let mut read = Read::default();
    while read.outcome.is_none() && read.tokens.len() < tokens_max {
        for record in reader.next().await {
            assert_eq!(read.outcome, None, "something follows the end");
            match record {
                Record::Token { position, token, text, .. } => {
                    let expected = Position(0).plus(prompt_len + read.tokens.len());
                    assert_eq!(position, expected, "positions have no gap");
                    read.tokens.push(token);
                    read.text += &text;
                }
                Record::End { text, outcome } => {
                    read.text += &text;
                    read.outcome = Some(outcome);
                }
            }
        }
    }
    read
}

/// A request of one choice.
pub(crate) fn request(seed: u64, prompt_len: usize, max_tokens: u32) -> NewRequest {
    NewRequest {
        prompts: vec![vec![TokenId(b'x'.into()); prompt_len].into()],
        choices: vec![Sampling { seed, ..Sampling::default() }],
        max_tokens: Some(max_tokens),
        stops: Vec::new(),
        end_tokens: false,
        label: "test".to_owned(),
    }
}

/// A request that harms the worker that reads it.
pub(crate) fn poison(seed: u64) -> NewRequest {
    let mut request = request(seed, 20, 50);
    let mut prompt = request.prompts[0].to_vec();
    prompt[0] = model::POISON;
    request.prompts[0] = prompt.into();
    request
}

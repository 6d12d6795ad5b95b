//! Random requests, random faults, random cancels; each seed another run, each run the same.

use std::time::Duration;

use shared::config::Config;
use shared::limits::STRIKES_MAX;
use shared::protocol::Sampling;
use strata_supervisor::event_loop::{Control, Core, NewRequest, Ticket};
use strata_supervisor::session::log::{Failure, Outcome};
use strata_supervisor::status::ServiceState;

use super::harness::{self, Service, config, read, request};
use super::model;
use super::random::Random;
use super::worker::World;

/// Seeds of an ordinary run; `STRATA_SIMULATION_SEEDS` sets another number.
const SEEDS: u64 = 200;

#[test]
fn every_answer_is_that_of_an_undisturbed_run_whatever_happens() {
    let seeds = std::env::var("STRATA_SIMULATION_SEEDS");
    let seeds = seeds.ok().map_or(SEEDS, |value| value.parse().expect("a number of seeds"));
    for seed in 0..seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(run(seed));
            runtime.block_on(run_into_a_drain(seed));
        }));
        assert!(result.is_ok(), "seed {seed}");
    }
}

async fn run(seed: u64) {
    let mut random = Random(seed);
    let faults = random.below(12);
    let world = World::random(Random(random.next()), faults);
    let service = Service::start(world, config());
    let clients = (0..1 + random.below(12))
        .map(|_| tokio::spawn(client(service.core.clone(), Random(random.next()))))
        .collect::<Vec<_>>();
    for client in clients {
        client.await.unwrap();
    }
    service.stop().await;
}

/// A drain that may take long loses no stream, whatever happens to its workers.
async fn run_into_a_drain(seed: u64) {
    let mut random = Random(seed);
    let faults = random.below(12);
    let world = World::random(Random(random.next()), faults);
    let config = Config { drain_timeout_s: 1e6, ..config() };
    let service = Service::serving(world, config).await;
    let mut asked = Vec::new();
    for _ in 0..1 + random.below(12) {
        let request = random_request(&mut random);
        asked.push((harness::submit(&service.core, &request).await, request));
        tokio::time::sleep(Duration::from_millis(random.below(200).into())).await;
    }
    tokio::time::sleep(Duration::from_millis(random.below(3000).into())).await;
    let is_held = random.below(2) == 0;
    if is_held {
        service.core.control(Control::Hold).await.unwrap();
    } else {
        service.core.drain();
    }
    for (ticket, request) in asked {
        check(ticket, &request).await;
    }
    if is_held {
        service.wait_for(|status| status.state == ServiceState::Held).await;
        assert_eq!(service.world.alive(), 0);
        service.core.drain();
    }
    service.over().await;
}

async fn client(core: Core, mut random: Random) {
    tokio::time::sleep(Duration::from_millis(random.below(3000).into())).await;
    for _ in 0..1 + random.below(3) {
        let request = random_request(&mut random);
        if random.below(5) == 0 {
            give_up(&core, &request, &mut random).await;
        } else {
            ask(&core, &request).await;
        }
    }
}

/// A client that reads to the end. The only failure that may meet it is the conviction of a
/// session that really was active, without a new token, in three lives that failed in a row.
async fn ask(core: &Core, request: &NewRequest) {
    check(harness::submit(core, request).await, request).await;
}

async fn check(ticket: Ticket, request: &NewRequest) {
    for (choice, mut reader) in ticket.readers.into_iter().enumerate() {
        let read = read(&mut reader, request.prompts[0].len(), usize::MAX).await;
        let (tokens, text, outcome) = model::expected(request, choice);
        if let Some(Outcome::Failed(failure)) = &read.outcome {
            assert_convicted(failure);
            assert!(tokens.starts_with(&read.tokens) && text.starts_with(&read.text));
        } else {
            assert_eq!((read.text, read.outcome), (text, Some(outcome)));
            assert_eq!(read.tokens, tokens);
        }
    }
}

fn assert_convicted(failure: &Failure) {
    assert!(failure.deterministic && failure.attempts >= STRIKES_MAX, "{failure:?}");
}

fn random_request(random: &mut Random) -> NewRequest {
    let prompt_len = 1 + random.below(60) as usize;
    let mut request = request(random.next(), prompt_len, random.below(80));
    if random.below(6) == 0 {
        request.max_tokens = None;
    }
    request.end_tokens = random.below(2) == 0;
    for choice in 1..=random.below(3) {
        request.choices.push(Sampling { choice, ..request.choices[0].clone() });
    }
    for _ in 0..random.below(3) {
        let letter =
            |random: &mut Random| char::from(b'a' + u8::try_from(random.below(4)).unwrap());
        let length = 1 + random.below(4);
        request.stops.push((0..length).map(|_| letter(random)).collect());
    }
    request
}

/// A client that goes away at some moment; what it read until then is a prefix of the answer.
async fn give_up(core: &Core, request: &NewRequest, random: &mut Random) {
    let ticket = harness::submit(core, request).await;
    let patience = random.below(30) as usize;
    let (tokens, text, _) = model::expected(request, 0);
    let mut readers = ticket.readers;
    if patience > 0 {
        let part = read(&mut readers[0], request.prompts[0].len(), patience).await;
        assert!(tokens.starts_with(&part.tokens));
        assert!(text.starts_with(&part.text));
        if let Some(Outcome::Failed(failure)) = &part.outcome {
            assert_convicted(failure);
        }
    }
    if random.below(2) == 0 {
        tokio::time::sleep(Duration::from_millis(random.below(100).into())).await;
    }
}

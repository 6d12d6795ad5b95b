//! One fault at a time: what is counted, and that the answer does not change.

use std::time::Duration;

use shared::fault::WorkerExit;
use strata_supervisor::event_loop::{Control, Rejection};
use strata_supervisor::session::log::{Outcome, Phase};
use strata_supervisor::status::{ServiceState, Status};

use super::harness::{Service, config, poison, read, request};
use super::worker::AtToken::{
    self, Alien, CloseLink, Die, DieSlowly, Empty, EndEarly, EndUnknown, Exit, Gap, Garbage,
    NonFinite, Repeat, Stall, WrongIncarnation,
};
use super::worker::{Fault, World};

/// Asks with this fault in the first life; it must be counted under `reason`.
async fn survives(fault: Fault, reason: &str) {
    let service = Service::start(World::scripted([fault]), config());
    service.ask(request(7, 30, 60)).await;
    let status = service.core.status();
    assert_eq!(status.recycles.by_reason.get(reason), Some(&1), "{fault:?}: {status:#?}");
    assert_eq!(status.recycles.total, 1, "{fault:?}: {status:#?}");
    assert_eq!(status.last_failure.as_ref().unwrap().incarnation, 1);
    assert_eq!((status.requests.finished, status.requests.failed), (1, 0));
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_at_any_phase_is_replaced_and_the_answer_goes_on() {
    survives(Fault::NotLaunched, "spawn").await;
    survives(Fault::DieLoading, "sigsegv").await;
    survives(Fault::ExitLoading(WorkerExit::OutOfMemory), "out_of_memory").await;
    survives(Fault::DieAtProgress(1), "sigsegv").await;
    survives(Fault::DieAtProgress(3), "sigsegv").await;
    for at in [1, 2, 17, 59, 60] {
        survives(Fault::AtToken(at, Die), "sigsegv").await;
    }
    survives(Fault::AtToken(5, Exit(WorkerExit::Panic)), "panic").await;
    survives(Fault::AtToken(5, NonFinite), "nonfinite").await;
}

#[tokio::test(start_paused = true)]
async fn a_death_is_no_hang_whatever_is_written_into_the_broken_link() {
    for seed in 0..8 {
        let world = World::scripted([Fault::AtToken(40, DieSlowly)]);
        let service = Service::serving(world, config()).await;
        let ask = super::harness::ask(service.core.clone(), request(seed, 10, 60));
        let whole = tokio::spawn(ask);
        let mut leaving = Vec::new();
        for client in 1..4 {
            leaving.push(service.submit(&request(seed + client, 10, 60)).await);
        }
        service.wait_for(|status| status.tokens.generated_total >= 39).await;
        // The link is broken, the process not yet reaped: each reader that leaves makes the loop
        // end its session in the worker.
        for ticket in leaving {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(ticket);
        }
        whole.await.unwrap();
        let reasons = service.core.status().recycles.by_reason.clone();
        assert_eq!(reasons.into_iter().collect::<Vec<_>>(), [("sigsegv".to_owned(), 1)]);
        service.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_hangs_is_replaced() {
    survives(Fault::StallLoading, "load_timeout").await;
    survives(Fault::StallAtProgress(1), "hang").await;
    survives(Fault::AtToken(9, Stall), "hang").await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_breaks_the_protocol_is_replaced_and_nothing_of_it_is_shown() {
    let breaches: [AtToken; 8] =
        [WrongIncarnation, Gap, Repeat, Alien, Empty, EndEarly, EndUnknown, Garbage];
    for breach in breaches {
        survives(Fault::AtToken(9, breach), "protocol").await;
    }
    survives(Fault::AtToken(9, CloseLink), "link_closed").await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_never_goes_on_over_other_weights() {
    let script = [Fault::AtToken(9, Die), Fault::OtherWeights, Fault::OtherWeights];
    let service = Service::start(World::scripted(script), config());
    service.ask(request(7, 30, 60)).await;
    let status = service.core.status();
    assert_eq!(status.recycles.by_reason.get("other_weights"), Some(&2), "{status:#?}");
    assert_eq!((status.requests.finished, status.requests.failed), (1, 0));
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_that_answers_no_ping_is_replaced() {
    let service = Service::serving(World::scripted([Fault::Deaf]), config()).await;
    service.wait_for(|status| status.recycles.by_reason.contains_key("hang")).await;
    service.ask(request(1, 5, 5)).await;
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_the_worker_forgot_is_a_hang_though_others_go_on() {
    let world = World::scripted([Fault::Forget(3)]);
    world.set_step(Duration::from_millis(500));
    let service = Service::serving(world, config()).await;
    let core = service.core.clone();
    let forgotten = tokio::spawn(super::harness::ask(core, request(7, 5, 50)));
    for seed in 0..4 {
        service.ask(request(seed, 5, 100)).await;
    }
    forgotten.await.unwrap();
    let status = service.core.status();
    assert_eq!(status.recycles.by_reason.get("hang"), Some(&1), "{status:#?}");
    assert_eq!((status.requests.finished, status.requests.failed), (5, 0));
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_the_worker_does_not_free_is_a_hang_though_others_go_on() {
    let world = World::scripted([Fault::KeepEnded]);
    world.set_step(Duration::from_millis(500));
    let service = Service::serving(world, config()).await;
    let mut ticket = service.submit(&request(7, 5, 50)).await;
    read(&mut ticket.readers[0], 5, 3).await;
    drop(ticket);
    for seed in 0..2 {
        service.ask(request(seed, 5, 100)).await;
    }
    let status = service.core.status();
    assert_eq!(status.recycles.by_reason.get("hang"), Some(&1), "{status:#?}");
    assert_eq!((status.requests.finished, status.requests.cancelled), (2, 1));
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_prefill_is_no_hang() {
    let world = World::default();
    world.set_step(Duration::from_secs(29));
    let service = Service::serving(world, config()).await;
    service.ask(request(1, 200, 3)).await;
    assert_eq!(service.core.status().recycles.total, 0);
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_kills_every_worker_is_convicted_and_the_others_go_on() {
    for (fault, kind) in [
        (Fault::DieAtProgress(1), "crash"),
        (Fault::StallAtProgress(1), "hang"),
        (Fault::AtToken(1, NonFinite), "nonfinite"),
    ] {
        let world = World::default();
        world.set_poison(fault);
        let service = Service::serving(world, strata_config(5)).await;
        let core = service.core.clone();
        let innocent = tokio::spawn(super::harness::ask(core.clone(), request(3, 20, 80)));
        let mut ticket = service.submit(&poison(1)).await;
        let late = tokio::spawn(super::harness::ask(core, request(4, 20, 80)));
        let read = read(&mut ticket.readers[0], 20, usize::MAX).await;
        let Some(Outcome::Failed(failure)) = read.outcome else { panic!("{read:?}") };
        assert_eq!(failure.kind, kind);
        assert!(failure.deterministic && !failure.retryable, "{failure:?}");
        assert_eq!(failure.attempts, 3);
        assert!(matches!(failure.phase, Phase::Prefill | Phase::Replay), "{failure:?}");
        innocent.await.unwrap();
        late.await.unwrap();
        assert_ne!(service.core.status().state, ServiceState::Degraded);
        service.stop().await;
    }
}

fn strata_config(failures_max: u32) -> shared::config::Config {
    shared::config::Config { failures_max, ..config() }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_cannot_start_says_so_and_comes_back_by_itself() {
    let world = World::scripted([Fault::None, Fault::AtToken(3, Die)]);
    for _ in 0..6 {
        world.add(Fault::DieLoading);
    }
    let service = Service::serving(world, strata_config(4)).await;
    service.core.control(Control::Recycle { now: true }).await.unwrap();
    let mut ticket = service.submit(&request(2, 10, 50)).await;
    let status = service.wait_for(|status| status.state == ServiceState::Degraded).await;
    assert!(status.retry_at.is_some());
    let refused = service.core.submit(request(2, 10, 50)).await;
    assert!(matches!(refused, Err(Rejection::Degraded { .. })), "{refused:?}");
    let read = read(&mut ticket.readers[0], 10, usize::MAX).await;
    let Some(Outcome::Failed(failure)) = read.outcome else { panic!("{read:?}") };
    assert!(failure.retryable && !failure.deterministic, "{failure:?}");
    service.wait_for(|status| status.state == ServiceState::Serving).await;
    service.ask(request(2, 10, 50)).await;
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_says_why_it_cannot_be_is_tried_until_it_can() {
    let served = vec![Fault::None];
    for before in [vec![], served] {
        for exit in [WorkerExit::Model, WorkerExit::Usage, WorkerExit::Protocol] {
            let has_served = !before.is_empty();
            let failures = vec![Fault::ExitLoading(exit); 6];
            let world = World::scripted(before.iter().copied().chain(failures));
            let service = Service::start(world, strata_config(4));
            if has_served {
                service.ask(request(2, 10, 50)).await;
                service.core.control(Control::Recycle { now: true }).await.unwrap();
            }
            let is_degraded = |status: &Status| {
                status.state == ServiceState::Degraded && status.retry_at.is_some()
            };
            let status = service.wait_for(is_degraded).await;
            let name = strata_supervisor::worker::exit::exit_name(exit);
            assert!(status.cause.as_ref().unwrap().contains(name), "{status:#?}");
            let refused = service.core.submit(request(2, 10, 50)).await;
            let Err(Rejection::Degraded { cause, .. }) = refused else { panic!("{refused:?}") };
            assert!(cause.contains(name), "{cause}");
            let is_tried = |status: &Status| status.worker.state == "starting";
            let status = service.wait_for(is_tried).await;
            assert_eq!(status.state, ServiceState::Degraded);
            assert!(status.cause.as_ref().unwrap().contains(name), "{status:#?}");
            service.wait_for(|status| status.state == ServiceState::Serving).await;
            service.ask(request(2, 10, 50)).await;
            service.stop().await;
        }
    }
}

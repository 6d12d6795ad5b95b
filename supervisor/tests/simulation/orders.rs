//! What operators order: recycle, hold, release, stop.

use std::time::Duration;

use shared::config::Config;
use strata_supervisor::event_loop::{Control, Rejection};
use strata_supervisor::session::log::Outcome;
use strata_supervisor::status::ServiceState;

use super::harness::{Service, ask, config, read, request};
use super::worker::AtToken::Die;
use super::worker::{Fault, World};

#[tokio::test(start_paused = true)]
async fn a_recycle_lets_what_runs_finish_and_what_comes_wait() {
    let service = Service::serving(World::default(), config()).await;
    let running = tokio::spawn(ask(service.core.clone(), request(1, 10, 200)));
    service.wait_for(|status| status.tokens.generated_total > 20).await;
    service.core.control(Control::Recycle { now: false }).await.unwrap();
    let waiting = tokio::spawn(ask(service.core.clone(), request(2, 10, 20)));
    running.await.unwrap();
    waiting.await.unwrap();
    let status = service.core.status();
    assert_eq!(status.recycles.by_reason.get("operator"), Some(&1));
    assert_eq!(status.tokens.replayed_total, 0, "nothing had to be read twice");
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_recycle_that_waited_long_enough_replays() {
    let world = World::default();
    world.set_step(Duration::from_secs(1));
    let service = Service::serving(world, config()).await;
    let running = tokio::spawn(ask(service.core.clone(), request(1, 10, 100)));
    service.wait_for(|status| status.tokens.generated_total > 20).await;
    service.core.control(Control::Recycle { now: false }).await.unwrap();
    running.await.unwrap();
    let status = service.core.status();
    assert_eq!(status.recycles.by_reason.get("operator"), Some(&1));
    assert!(status.tokens.replayed_total > 30);
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_recycle_now_replays_at_once_however_often() {
    let service = Service::serving(World::default(), config()).await;
    let running = tokio::spawn(ask(service.core.clone(), request(1, 10, 300)));
    for times in 1..10 {
        let tokens = 20 * times;
        service.wait_for(|status| status.tokens.generated_total > tokens).await;
        service.core.control(Control::Recycle { now: true }).await.unwrap();
    }
    running.await.unwrap();
    assert_eq!(service.core.status().recycles.by_reason.get("operator"), Some(&9));
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_held_service_refuses_until_it_is_released() {
    let service = Service::serving(World::default(), config()).await;
    let running = tokio::spawn(ask(service.core.clone(), request(1, 10, 100)));
    service.wait_for(|status| status.tokens.generated_total > 20).await;
    service.core.control(Control::Hold).await.unwrap();
    let refused = service.core.submit(request(2, 10, 50)).await;
    assert!(matches!(refused, Err(Rejection::Held { .. })), "{refused:?}");
    running.await.unwrap();
    service.wait_for(|status| status.state == ServiceState::Held).await;
    assert_eq!(service.world.alive(), 0);
    service.core.control(Control::Recycle { now: true }).await.unwrap_err();
    service.core.control(Control::Release).await.unwrap();
    service.ask(request(2, 10, 50)).await;
    service.core.control(Control::Release).await.unwrap_err();
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_taken_back_in_time_changes_nothing() {
    let service = Service::serving(World::default(), config()).await;
    let running = tokio::spawn(ask(service.core.clone(), request(1, 10, 100)));
    service.wait_for(|status| status.tokens.generated_total > 20).await;
    service.core.control(Control::Hold).await.unwrap();
    service.core.control(Control::Release).await.unwrap();
    running.await.unwrap();
    service.ask(request(2, 10, 50)).await;
    assert_eq!(service.core.status().recycles.total, 0);
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_streams_finish_and_refuses_what_is_new() {
    let service = Service::serving(World::default(), config()).await;
    let running = tokio::spawn(ask(service.core.clone(), request(1, 10, 200)));
    service.wait_for(|status| status.tokens.generated_total > 20).await;
    service.core.drain();
    service.wait_for(|status| status.state == ServiceState::Draining).await;
    let refused = service.core.submit(request(2, 10, 50)).await;
    assert!(matches!(refused, Err(Rejection::Draining)), "{refused:?}");
    running.await.unwrap();
    service.over().await;
}

/// Streams too long for the drain, and one that has not begun; each gets one honest end.
async fn stop_with_failures(drains: u32, seconds_max: u64) {
    let world = World::default();
    world.set_step(Duration::from_secs(1));
    let service = Service::serving(world, Config { drain_timeout_s: 20.0, ..config() }).await;
    let mut readers = Vec::new();
    for seed in 0..6 {
        readers.extend(service.submit(&request(seed, 10, 300)).await.readers);
    }
    service.wait_for(|status| status.tokens.generated_total > 20).await;
    let start = tokio::time::Instant::now();
    for _ in 0..drains {
        service.core.drain();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for mut reader in readers {
        let read = read(&mut reader, 10, usize::MAX).await;
        let Some(Outcome::Failed(failure)) = read.outcome else { panic!("{read:?}") };
        assert_eq!((failure.kind, failure.retryable), ("shutdown", true));
    }
    service.over().await;
    assert!(start.elapsed() <= Duration::from_secs(seconds_max), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_what_takes_too_long_with_an_honest_failure() {
    stop_with_failures(1, 26).await;
}

#[tokio::test(start_paused = true)]
async fn a_second_stop_is_immediate() {
    stop_with_failures(2, 1).await;
}

/// Orders, from which a drain follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drain {
    Hold,
    Stop,
}

impl Drain {
    async fn order(self, service: &Service) {
        match self {
            Self::Stop => {
                service.core.drain();
                service.wait_for(|status| status.state == ServiceState::Draining).await;
            }
            Self::Hold => service.core.control(Control::Hold).await.map(|_| ()).unwrap(),
        }
    }

    /// Nothing new is accepted.
    async fn assert_refuses(self, service: &Service) {
        let refused = service.core.submit(request(9, 10, 50)).await;
        match self {
            Self::Stop => assert!(matches!(refused, Err(Rejection::Draining)), "{refused:?}"),
            Self::Hold => assert!(matches!(refused, Err(Rejection::Held { .. })), "{refused:?}"),
        }
    }

    /// It ends as ordered, and a held service can be released.
    async fn assert_done(self, service: Service) {
        if self == Self::Hold {
            service.wait_for(|status| status.state == ServiceState::Held).await;
            assert_eq!(service.world.alive(), 0);
            service.core.control(Control::Release).await.unwrap();
            service.ask(request(2, 10, 50)).await;
            service.core.drain();
        }
        service.over().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_lost_in_a_drain_is_replaced_and_the_streams_finish() {
    let dies = Fault::AtToken(200, Die);
    for drain in [Drain::Hold, Drain::Stop] {
        for (script, moment) in [
            (vec![dies], "serving"),
            (vec![dies, Fault::AtToken(20, Die), Fault::NotLaunched], "serving"),
            (vec![dies, Fault::StallLoading], "starting"),
            (vec![dies, Fault::DieLoading, Fault::DieLoading], "backing_off"),
        ] {
            let world = World::scripted(script);
            let timeout = Config { drain_timeout_s: 1000.0, ..config() };
            let service = Service::serving(world, timeout).await;
            // More than there are slots.
            let clients: Vec<_> = (0..6)
                .map(|seed| tokio::spawn(ask(service.core.clone(), request(seed, 10, 100))))
                .collect();
            service.wait_for(|status| status.tokens.generated_total > 20).await;
            service.wait_for(|status| status.worker.state == moment).await;
            drain.order(&service).await;
            drain.assert_refuses(&service).await;
            service.wait_for(|status| status.recycles.total > 0).await;
            drain.assert_refuses(&service).await;
            for client in clients {
                client.await.unwrap();
            }
            drain.assert_done(service).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_without_a_worker_ends_at_its_deadline_with_one_honest_failure() {
    for (drain, kind) in [(Drain::Hold, "held"), (Drain::Stop, "shutdown")] {
        let world = World::scripted([Fault::AtToken(60, Die), Fault::StallLoading]);
        let timeout = Config { drain_timeout_s: 20.0, ..config() };
        let service = Service::serving(world, timeout).await;
        let mut ticket = service.submit(&request(1, 10, 300)).await;
        service.wait_for(|status| status.tokens.generated_total > 20).await;
        let start = tokio::time::Instant::now();
        drain.order(&service).await;
        let read = read(&mut ticket.readers[0], 10, usize::MAX).await;
        let Some(Outcome::Failed(failure)) = read.outcome else { panic!("{read:?}") };
        assert_eq!(failure.kind, kind);
        let took = start.elapsed().as_secs_f64();
        assert!((19.9..20.1).contains(&took), "{took} s");
        drain.assert_done(service).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_works_in_every_state() {
    use shared::fault::WorkerExit;
    let model = Fault::ExitLoading(WorkerExit::Model);
    for (script, state) in [
        (vec![], ServiceState::Loading),
        (vec![Fault::StallLoading], ServiceState::Loading),
        (vec![Fault::DieLoading, Fault::DieLoading], ServiceState::BackingOff),
        (vec![model; 2], ServiceState::BackingOff),
        (vec![model; 9], ServiceState::Degraded),
    ] {
        let config = Config { failures_max: 8, ..config() };
        let service = Service::start(World::scripted(script), config);
        service.wait_for(|status| status.state == state).await;
        service.stop().await;
    }
    let service = Service::start(World::default(), config());
    service.core.control(Control::Hold).await.unwrap();
    service.wait_for(|status| status.state == ServiceState::Held).await;
    service.stop().await;
}

//! What operators order: recycle, hold, release, stop.

use std::time::Duration;

use shared::config::Config;
use strata_supervisor::event_loop::{Control, Rejection};
use strata_supervisor::session::log::Outcome;
use strata_supervisor::status::ServiceState;

use super::harness::{Service, ask, config, read, request};
use super::worker::World;

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

#[tokio::test(start_paused = true)]
async fn a_stop_works_in_every_state() {
    use super::worker::Fault;
    use shared::fault::WorkerExit;
    let model = Fault::ExitLoading(WorkerExit::Model);
    for (script, state) in [
        (vec![], ServiceState::Loading),
        (vec![Fault::StallLoading], ServiceState::Loading),
        (vec![Fault::DieLoading, Fault::DieLoading], ServiceState::BackingOff),
        (vec![model], ServiceState::Held),
    ] {
        let service = Service::start(World::scripted(script), config());
        service.wait_for(|status| status.state == state).await;
        service.stop().await;
    }
}

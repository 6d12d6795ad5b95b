//! Admission, slots and cancels.

use std::time::Duration;

use shared::config::Config;
use shared::ids::SessionId;
use shared::protocol::Sampling;
use strata_supervisor::event_loop::{Core, Rejection};
use strata_supervisor::session::log::{Outcome, Record};

use super::harness::{Service, ask, config, read, request};
use super::worker::{CONTEXT_LEN, SLOTS, World};

#[tokio::test(start_paused = true)]
async fn the_first_load_refuses_with_a_time() {
    let service = Service::start(World::default(), config());
    tokio::time::sleep(Duration::from_millis(120)).await;
    let refused = service.core.submit(request(1, 10, 10)).await;
    let Err(Rejection::Loading { total_bytes, retry_after_s, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(total_bytes, 400);
    assert!(retry_after_s >= 1);
    service.ask(request(1, 10, 10)).await;
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_bounded_and_served_in_order() {
    let service = Service::serving(World::default(), Config { queue_limit: 2, ..config() }).await;
    let mut tickets = Vec::new();
    for seed in 0..u64::from(SLOTS) + 2 {
        tickets.push(service.core.submit(request(seed, 10, 50)).await.unwrap());
    }
    let refused = service.core.submit(request(9, 10, 50)).await;
    let Err(Rejection::QueueFull { limit: 2, retry_after_s }) = refused else {
        panic!("{refused:?}")
    };
    assert!((1..=60).contains(&retry_after_s));
    let status = service.core.status();
    assert_eq!((status.requests.active, status.requests.queued), (4, 2));
    for ticket in &mut tickets {
        let read = read(&mut ticket.readers[0], 10, usize::MAX).await;
        assert_eq!(read.outcome, Some(Outcome::Length));
    }
    let order: Vec<SessionId> = (1..=6).map(SessionId).collect();
    assert_eq!(service.world.submits(), order);
    assert_eq!(service.core.status().requests.rejected, 1);
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_queue_a_free_slot_still_takes_a_request() {
    let service = Service::serving(World::default(), Config { queue_limit: 0, ..config() }).await;
    service.ask(request(1, 10, 10)).await;
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_fills_the_context_is_refused_and_one_shorter_gets_one_token() {
    let service = Service::serving(World::default(), config()).await;
    let n_ctx = CONTEXT_LEN;
    let refused = service.core.submit(request(1, n_ctx as usize, 10)).await;
    let expected = Err(Rejection::TooLong { n_prompt: n_ctx, n_ctx });
    assert_eq!(refused.map(|_| ()), expected);
    service.ask(request(1, n_ctx as usize - 1, 10)).await;
    assert_eq!(service.core.status().tokens.generated_total, 1);
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_of_prompts_is_accepted_whole_or_not_at_all() {
    let service = Service::serving(World::default(), Config { queue_limit: 1, ..config() }).await;
    let mut list = request(1, 10, 20);
    list.prompts = (5..12).map(|length| request(1, length, 1).prompts.remove(0)).collect();
    list.choices.push(Sampling { choice: 1, ..list.choices[0].clone() });
    let mut unservable = list.clone();
    unservable.prompts.push(request(1, CONTEXT_LEN as usize, 1).prompts.remove(0));

    let refused = service.core.submit(unservable.clone()).await.map(|_| ());
    let n_ctx = CONTEXT_LEN;
    assert_eq!(refused, Err(Rejection::TooLong { n_prompt: n_ctx, n_ctx }), "and no prompt ran");
    service.ask(list.clone()).await;
    let status = service.core.status();
    let requests = &status.requests;
    assert_eq!((requests.total, requests.rejected, requests.finished), (1, 1, 1));
    assert_eq!(service.world.submits().len(), 14);
    assert_eq!(status.tokens.prompt_total, (5..12).sum::<u64>() * 2);

    // With a full queue, what can never be served still says so, and never "come back later".
    let mut held = Vec::new();
    for seed in 0..u64::from(SLOTS) + 1 {
        held.push(service.core.submit(request(seed, 10, 200)).await.unwrap());
    }
    let refused = service.core.submit(unservable).await.map(|_| ());
    assert!(matches!(refused, Err(Rejection::TooLong { .. })), "{refused:?}");
    let refused = service.core.submit(list).await.map(|_| ());
    assert!(matches!(refused, Err(Rejection::QueueFull { .. })), "{refused:?}");
    assert_eq!(service.core.status().requests.rejected, 3);
    drop(held);
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_to_emit_ends_at_once() {
    let service = Service::serving(World::default(), config()).await;
    let mut ticket = service.submit(&request(1, 10, 0)).await;
    let records = ticket.readers[0].next().await;
    let end = Record::End { text: String::new(), outcome: Outcome::Length };
    assert_eq!(records, [end]);
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn choices_draw_differently_and_more_of_them_than_slots_wait() {
    let service = Service::serving(World::default(), config()).await;
    let mut request = request(1, 10, 40);
    for choice in 1..8 {
        request.choices.push(Sampling { choice, ..request.choices[0].clone() });
    }
    service.ask(request).await;
    assert_eq!(service.core.status().requests.finished, 1);
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_leaves_frees_its_slot_in_prefill_and_in_decode() {
    let world = World::default();
    world.set_step(Duration::from_secs(1));
    let service = Service::serving(world.clone(), config()).await;
    for tokens in [0, 2] {
        let mut tickets = Vec::new();
        for seed in 0..u64::from(SLOTS) {
            tickets.push(service.submit(&request(seed, 100, 200)).await);
        }
        if tokens > 0 {
            for ticket in &mut tickets {
                read(&mut ticket.readers[0], 100, tokens).await;
            }
        } else {
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        drop(tickets);
        let start = tokio::time::Instant::now();
        service.ask(request(9, 1, 3)).await;
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
    let status = service.core.status();
    assert_eq!((status.requests.cancelled, status.recycles.total), (8, 0));
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_submission_that_is_given_up_is_cancelled() {
    let service = Service::serving(World::default(), config()).await;
    for turns in 0..3 {
        give_up_after(&service.core, turns).await;
    }
    service.wait_for(|status| status.requests.active + status.requests.queued == 0).await;
    ask(service.core.clone(), request(1, 10, 10)).await;
    service.stop().await;
}

async fn give_up_after(core: &Core, turns: u32) {
    let patience = async {
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        _ = core.submit(request(1, 10, 100)) => {}
        () = patience => {}
    }
}

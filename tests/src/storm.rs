//! Many streams over a worker that is killed again and again: each text must be that of an
//! undisturbed run, with one end, and nothing may pile up.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::process;
use crate::random::Random;
use crate::server::Server;
use crate::sse::Answer;
use crate::wait::wait_until;

/// How many streams a storm has; 25 unless this is set.
pub const STREAMS_VARIABLE: &str = "STRATA_STREAMS";

/// Streams at once, at most.
const CONCURRENT_MAX: usize = 4;

/// Kills in a row without a token between them. Eight make the service call itself degraded, as
/// it should; a storm is to show what streams survive.
const BARREN_KILLS_MAX: u32 = 5;

/// Memory a supervisor may gain over a storm, in bytes: caches and logs of what is open.
const MEMORY_GROWTH_MAX: u64 = 48 << 20;

/// What a storm looks like.
#[derive(Debug, Clone)]
pub struct Storm {
    /// Streams in all.
    pub streams: usize,
    /// Longest pause between two kills.
    pub pause_max: Duration,
    /// Tokens per answer.
    pub tokens: u32,
}

impl Storm {
    /// As many streams as `STRATA_STREAMS` says, else `default`.
    ///
    /// # Panics
    ///
    /// If the variable is no number.
    #[must_use]
    pub fn streams_or(default: usize) -> usize {
        std::env::var(STREAMS_VARIABLE)
            .map_or(default, |text| text.parse().expect("STRATA_STREAMS is a number"))
    }
}

/// What a storm has done.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Workers killed.
    pub kills: u64,
}

/// The requests: greedy ones and drawn ones, short and long prompts, one and two choices.
fn requests(tokens: u32) -> Vec<Value> {
    let texts = ["Write a short story about a lighthouse.", "Count from one to thirty in words."];
    let long = format!("Summarise: {}", "The river was wide and the night was long. ".repeat(30));
    let mut requests = Vec::new();
    for text in texts.into_iter().chain([long.as_str()]) {
        for (temperature, n) in [(0.0, 1), (0.8, 1), (0.8, 2)] {
            requests.push(json!({
                "messages": [{"role": "user", "content": text}],
                "max_tokens": tokens,
                "temperature": temperature,
                "seed": 42,
                "n": n,
            }));
        }
    }
    requests
}

/// Runs a storm.
///
/// # Panics
///
/// If a stream differs from the undisturbed run, or anything is left over.
pub fn run(server: &Server, storm: &Storm, mut random: Random) -> Outcome {
    let requests = requests(storm.tokens);
    let expected: Vec<Answer> = requests.iter().map(|request| server.chat(request)).collect();
    server.wait_ready();
    let descriptors = process::open_descriptors(server.pid());
    let memory = process::anonymous_memory(server.pid());
    let plan: Mutex<Vec<usize>> =
        Mutex::new((0..storm.streams).map(|_| random.below(requests.len())).collect());
    let is_over = AtomicBool::new(false);
    let kills = AtomicU64::new(0);
    thread::scope(|scope| {
        let killer = scope.spawn(|| kill_often(server, storm, random, &is_over, &kills));
        // One at a time, then two at once, and so on; each for its share of the streams.
        let mut results = Vec::new();
        for readers in 1..=CONCURRENT_MAX {
            let leave = storm.streams - storm.streams * readers / CONCURRENT_MAX;
            let (requests, expected, plan) = (&requests, &expected, &plan);
            let read = move || read_streams(server, requests, expected, plan, leave);
            let readers: Vec<_> = (0..readers).map(|_| scope.spawn(read)).collect();
            results.extend(readers.into_iter().map(thread::ScopedJoinHandle::join));
        }
        is_over.store(true, Ordering::Relaxed);
        killer.thread().unpark();
        for result in results {
            if let Err(panic) = result {
                std::panic::resume_unwind(panic);
            }
        }
    });
    server.wait_ready();
    server.assert_no_leftovers();
    wait_until("descriptors back at the baseline", Duration::from_secs(10), || {
        process::open_descriptors(server.pid()) <= descriptors
    });
    let grown = process::anonymous_memory(server.pid()).saturating_sub(memory);
    assert!(grown < MEMORY_GROWTH_MAX, "the supervisor grew by {grown} bytes");
    Outcome { kills: kills.into_inner() }
}

/// Reads streams of the plan until only `leave` of them are left.
fn read_streams(
    server: &Server,
    requests: &[Value],
    expected: &[Answer],
    plan: &Mutex<Vec<usize>>,
    leave: usize,
) {
    loop {
        let (number, index) = {
            let mut plan = plan.lock().expect("no reader panics with the plan locked");
            if plan.len() <= leave {
                return;
            }
            let Some(index) = plan.pop() else { return };
            (plan.len(), index)
        };
        let mut stream = match server.open_chat(&requests[index]) {
            Ok(stream) => stream,
            Err(why) => panic!("stream {number}: {why}"),
        };
        loop {
            match stream.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(why) => panic!("stream {number}: {why}"),
            }
        }
        let answer = stream.answer;
        answer.assert_whole(expected[index].choices.len());
        for (choice, expected) in &expected[index].choices {
            let found = &answer.choices[choice];
            assert_eq!(found.text, expected.text, "stream {number}, choice {choice}");
            assert_eq!(found.ends, expected.ends, "stream {number}, choice {choice}");
        }
    }
}

/// Kills the worker at random moments: while it loads, prefills, decodes, ends.
fn kill_often(
    server: &Server,
    storm: &Storm,
    mut random: Random,
    is_over: &AtomicBool,
    kills: &AtomicU64,
) {
    let mut last_total = 0;
    let mut barren_kills = 0;
    // Nobody sends: the channel is a clock that can be waited on.
    let (_sender, clock) = channel::<()>();
    let pause_max = usize::try_from(storm.pause_max.as_millis()).expect("pauses are short");
    while !is_over.load(Ordering::Relaxed) {
        let pause = Duration::from_millis(random.below(pause_max.max(1)) as u64);
        if clock.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        let status = server.status();
        let pid = status["worker"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        let total = status["tokens"]["generated_total"].as_u64().expect("a counter");
        if total > last_total {
            (last_total, barren_kills) = (total, 0);
        }
        let Some(pid) = pid.filter(|_| barren_kills < BARREN_KILLS_MAX) else { continue };
        process::signal(pid, Signal::SIGKILL);
        barren_kills += 1;
        kills.fetch_add(1, Ordering::Relaxed);
    }
}

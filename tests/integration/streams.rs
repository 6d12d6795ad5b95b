//! Streams over the death of their worker, in numbers, with the fake worker.

use std::time::Duration;

use strata_tests::random::Random;
use strata_tests::server::Setup;
use strata_tests::storm::{self, Storm};

#[test]
fn every_stream_reads_as_if_nothing_had_happened() {
    let random = Random::announced("streams over death");
    // Slow enough that kills meet prompts, tokens, ends and starts alike.
    let setup = Setup::fake("end_every=80; token_ms=2; chunk_ms=10; load_ms=30");
    let setup = setup.flag("--prefill-chunk", "256").flag("--forgive-after-s", "0.1");
    let mut server = setup.flag("--failures-max", "1000").serve();
    server.allow("worker lost");
    let storm = Storm {
        streams: Storm::streams_or(25),
        pause_max: Duration::from_millis(400),
        tokens: 120,
    };
    let outcome = storm::run(&server, &storm, random);
    eprintln!("{} streams, {} workers killed", storm.streams, outcome.kills);
    assert!(outcome.kills > 3, "the storm was calm: {outcome:?}");
    server.finish();
}

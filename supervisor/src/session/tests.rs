//! The table: every state against every event.

use shared::ids::Position;

use super::{Event, State, step};

#[test]
fn every_state_against_every_event() {
    let next = Position(3);
    let states = [
        State::Queued,
        State::Prefilling { next },
        State::Replaying { next },
        State::Decoding,
        State::Ending,
        State::Ended,
    ];
    let zero = Position(0);
    let further = Position(5);
    let (prefilling, replaying) =
        (State::Prefilling { next: further }, State::Replaying { next: further });
    let decoding = Some(State::Decoding);
    let ending = Some(State::Ending);
    let ended = Some(State::Ended);
    let queued = Some(State::Queued);
    let table = [
        (
            Event::Submitted { again: false },
            [Some(State::Prefilling { next: zero }), None, None, None, None, None],
        ),
        (
            Event::Submitted { again: true },
            [Some(State::Replaying { next: zero }), None, None, None, None, None],
        ),
        (
            Event::Progressed(further),
            [None, Some(prefilling), Some(replaying), decoding, ending, None],
        ),
        (Event::TokensArrived, [None, decoding, decoding, decoding, ending, None]),
        (Event::LogEnded, [ended, ending, ending, ending, None, None]),
        (Event::WorkerEnded, [None, None, None, None, ended, None]),
        (Event::WorkerLost, [queued, queued, queued, queued, ended, None]),
    ];
    for (event, row) in table {
        for (state, expected) in states.into_iter().zip(row) {
            assert_eq!(step(state, event).ok(), expected, "{state:?} + {event:?}");
        }
    }
}

//! Length-prefixed frames over a byte buffer.
//!
//! ```text
//! ┌──────────────┬───────────────────┐
//! │ body length  │ body              │
//! │ u32, LE      │ `length` bytes    │
//! └──────────────┴───────────────────┘
//! ```
//!
//! The length is checked against [`FRAME_BYTES_MAX`] before anything is allocated for the body.
//! "Not enough bytes yet" is a normal outcome; a bad length is not: the stream has lost its
//! framing and the peer must be replaced, never resynchronised.

use serde::{Serialize, de::DeserializeOwned};

use crate::codec::{self, CodecError};
use crate::limits::FRAME_BYTES_MAX;

const PREFIX_BYTES: usize = 4;

/// Why a frame could not be written or read. After any of these the link is poisoned.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The announced or produced body is larger than a frame may be.
    #[error("a frame of {0} bytes; the limit is {FRAME_BYTES_MAX}")]
    TooLarge(usize),
    /// The body is no valid message.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// Appends one framed message to `out`.
///
/// # Errors
///
/// [`FrameError`] if the message cannot be encoded or is too large; `out` is then unchanged.
pub fn write<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_BYTES]);
    let result = codec::encode_into(message, out).map_err(FrameError::from).and_then(|()| {
        let body = out.len() - start - PREFIX_BYTES;
        match u32::try_from(body) {
            Ok(length) if body <= FRAME_BYTES_MAX => Ok(length),
            _ => Err(FrameError::TooLarge(body)),
        }
    });
    match result {
        Ok(length) => {
            out[start..start + PREFIX_BYTES].copy_from_slice(&length.to_le_bytes());
            Ok(())
        }
        Err(error) => {
            out.truncate(start);
            Err(error)
        }
    }
}

/// Collects bytes as they arrive and gives back whole messages.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    consumed: usize,
}

impl FrameReader {
    /// Adds bytes that were read from the stream.
    pub fn extend(&mut self, bytes: &[u8]) {
        if self.consumed > 0 {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, or `None` if more bytes are needed.
    ///
    /// # Errors
    ///
    /// [`FrameError`] if the framing or the message is bad. The stream cannot be used further.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let rest = &self.buffer[self.consumed..];
        let Some((prefix, body)) = rest.split_first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(FrameError::TooLarge(length));
        }
        if body.len() < length {
            return Ok(None);
        }
        let message = codec::decode(&body[..length])?;
        self.consumed += PREFIX_BYTES + length;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::{FrameError, FrameReader, write};
    use crate::ids::{Incarnation, Position, SessionId};
    use crate::protocol::{FromWorker, Message};
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    fn progress(position: u32) -> Message<FromWorker> {
        Message {
            incarnation: Incarnation(7),
            body: FromWorker::Progress { session: SessionId(3), position: Position(position) },
        }
    }

    #[test]
    fn messages_survive_any_split_of_the_bytes() {
        let mut bytes = Vec::new();
        for position in 0..5 {
            write(&progress(position), &mut bytes).unwrap();
        }
        for step in 1..bytes.len() {
            let mut reader = FrameReader::default();
            let mut seen = Vec::new();
            for part in bytes.chunks(step) {
                reader.extend(part);
                while let Some(message) = reader.next_message::<Message<FromWorker>>().unwrap() {
                    seen.push(message);
                }
            }
            assert_eq!(seen, (0..5).map(progress).collect::<Vec<_>>(), "split every {step} bytes");
        }
    }

    #[test]
    fn an_oversized_length_is_refused_before_its_body_arrives() {
        let mut reader = FrameReader::default();
        reader.extend(&u32::MAX.to_le_bytes());
        let error = reader.next_message::<Message<FromWorker>>().unwrap_err();
        assert!(matches!(error, FrameError::TooLarge(_)), "{error}");
    }

    #[test]
    fn bytes_left_over_in_a_body_are_refused() {
        let mut bytes = Vec::new();
        write(&progress(1), &mut bytes).unwrap();
        bytes.push(0);
        let length = u32::try_from(bytes.len() - 4).unwrap();
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        let mut reader = FrameReader::default();
        reader.extend(&bytes);
        reader.next_message::<Message<FromWorker>>().unwrap_err();
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), 0..512),
        ) {
            let mut reader = FrameReader::default();
            reader.extend(&bytes);
            let mut count = 0;
            while let Ok(Some(_)) = reader.next_message::<Message<FromWorker>>() {
                count += 1;
                prop_assert_eq!(count <= bytes.len(), true);
            }
        }
    }
}

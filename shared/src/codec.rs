//! Messages to bytes and back. The only file that names the serialization crate.
//!
//! `bincode` is pinned to 2.0.1 (3.0.0 is a tombstone); to replace it, change this file and raise
//! [`crate::protocol::PROTOCOL_VERSION`].

use serde::{Serialize, de::DeserializeOwned};

use crate::limits::FRAME_BYTES_MAX;

/// Why a message could not be encoded or decoded.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The value does not fit a frame, or its type cannot be written.
    #[error("encoding a message: {0}")]
    Encode(#[from] bincode::error::EncodeError),
    /// The bytes are no such message. The peer is not speaking this protocol.
    #[error("decoding a message: {0}")]
    Decode(#[from] bincode::error::DecodeError),
    /// A whole message was read and bytes were left over.
    #[error("decoding a message: {0} bytes left over")]
    Trailing(usize),
}

const CONFIG: bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<FRAME_BYTES_MAX>,
> = bincode::config::standard().with_limit::<FRAME_BYTES_MAX>();

/// Appends the encoded message to `out`.
///
/// # Errors
///
/// [`CodecError::Encode`] if the value cannot be written.
pub fn encode_into<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
    bincode::serde::encode_into_std_write(message, out, CONFIG)?;
    Ok(())
}

/// Decodes one message that must fill `bytes` exactly.
///
/// # Errors
///
/// [`CodecError`] if the bytes are anything else; nothing larger than a frame is ever allocated.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let (message, used) = bincode::serde::decode_from_slice(bytes, CONFIG)?;
    match bytes.len() - used {
        0 => Ok(message),
        left => Err(CodecError::Trailing(left)),
    }
}

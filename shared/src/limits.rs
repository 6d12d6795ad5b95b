//! Every bound in the system, and how they relate.

use std::time::Duration;

/// Longest context a sequence may have, in tokens. Above any published model today.
pub const CONTEXT_LEN_MAX: u32 = 4 * 1024 * 1024;

/// Largest body of one frame on the link, in bytes: a prompt of the longest context is the
/// largest message (five bytes a token at worst, plus sampling settings).
pub const FRAME_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Largest vocabulary accepted from a weight file.
pub const VOCAB_SIZE_MAX: usize = 4 * 1024 * 1024;

/// Most sequences a worker computes at once.
pub const SLOTS_MAX: u32 = 64;

/// Positions a worker may run ahead of the supervisor's last acknowledgement.
pub const RUN_AHEAD_MAX: u32 = 16;

/// Candidates reported beside a chosen token. The OpenAI API allows 20.
pub const TOP_LOGPROBS_MAX: u32 = 20;

/// Entries in one request's `logit_bias`.
pub const LOGIT_BIAS_MAX: usize = 4096;

/// Token ids that end a sequence.
pub const END_TOKENS_MAX: usize = 64;

/// Stop strings in one request, and the length of each in bytes.
pub const STOP_STRINGS_MAX: usize = 16;
/// See [`STOP_STRINGS_MAX`].
pub const STOP_STRING_BYTES_MAX: usize = 1024;

/// Choices (`n`) in one request.
pub const CHOICES_MAX: u32 = 16;

/// Sequences that one request may ask for: prompts times choices.
pub const SEQUENCES_MAX: usize = 128;

/// Largest HTTP request body, in bytes.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Largest rendered prompt, in bytes: a template may expand its input.
pub const PROMPT_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;

/// Most messages in one chat request.
pub const MESSAGES_MAX: usize = 16 * 1024;

/// The longest name of a thing in a weight file, in bytes (GGUF allows 65,535).
pub const GGUF_KEY_BYTES_MAX: usize = 65_535;
/// The longest string value in a weight file's metadata, in bytes.
pub const GGUF_STRING_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Metadata entries in a weight file.
pub const GGUF_ENTRIES_MAX: usize = 65_536;
/// Tensors in a weight file.
pub const GGUF_TENSORS_MAX: usize = 262_144;
/// Elements in one metadata array.
pub const GGUF_ARRAY_MAX: usize = 16 * 1024 * 1024;
/// Bytes of header (metadata and tensor directory) read from a weight file.
pub const GGUF_HEADER_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Parts of a split weight file.
pub const GGUF_PARTS_MAX: usize = 1024;

/// Longest line of a worker's stderr that is kept, in bytes.
pub const STDERR_LINE_BYTES_MAX: usize = 4096;

/// Longest epitaph, in bytes.
pub const EPITAPH_BYTES_MAX: usize = 1024;

/// Worker deaths without one new token after which a request is called the cause.
pub const STRIKES_MAX: u32 = 3;

/// Largest silent gap on an open stream: a comment is written after it.
pub const STREAM_SILENCE_MAX: Duration = Duration::from_secs(4);

/// Every wait of the supervisor on a worker's last farewell.
pub const WORKER_LEAVE_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(FRAME_BYTES_MAX > CONTEXT_LEN_MAX as usize * 5 + LOGIT_BIAS_MAX * 16);
const _: () = assert!(EPITAPH_BYTES_MAX < STDERR_LINE_BYTES_MAX);
const _: () = assert!(GGUF_STRING_BYTES_MAX < GGUF_HEADER_BYTES_MAX);
const _: () = assert!(SEQUENCES_MAX >= CHOICES_MAX as usize);
const _: () = assert!(RUN_AHEAD_MAX > 0 && SLOTS_MAX > 0);

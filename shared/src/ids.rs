//! Newtypes for everything that is counted or named, so that two of them cannot be swapped.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
            Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $name {
            /// The one after this.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }
    };
}

id! {
    /// The number of a worker's life, rising by one per spawn. A message of another incarnation
    /// than the live one is never acted on.
    Incarnation(u64)
}

id! {
    /// One HTTP request. A request has one session per choice.
    RequestId(u64)
}

id! {
    /// One token log with its sampling settings: what the worker knows as a sequence.
    SessionId(u64)
}

id! {
    /// 0-based index in a session's token sequence.
    Position(u32)
}

id! {
    /// An entry of the vocabulary.
    TokenId(u32)
}

impl Position {
    /// As an index into a slice of tokens.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The position `count` places after this one.
    ///
    /// # Panics
    ///
    /// If the sum exceeds `u32::MAX`; every context length is bounded far below that.
    #[must_use]
    pub fn plus(self, count: usize) -> Self {
        let count = u32::try_from(count).expect("token counts are bounded by CONTEXT_LEN_MAX");
        Self(self.0.checked_add(count).expect("positions are bounded by CONTEXT_LEN_MAX"))
    }
}

impl TokenId {
    /// As an index into the vocabulary.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

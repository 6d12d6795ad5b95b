//! One mutable slice that the tasks of a [`Pool`](super::pool::Pool) write in disjoint parts.

use std::marker::PhantomData;

/// A mutable slice that may be handed to several threads, each of which takes its own parts.
#[derive(Debug, Clone, Copy)]
pub struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` in parts; `part` demands from its callers that parts do not overlap.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: as above; a shared reference only gives access through `part`.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Borrows `slice` for as long as tasks may write it.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// Elements of the whole slice.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `len` elements from `start`.
    ///
    /// # Panics
    /// When they are not inside the slice.
    ///
    /// # Safety
    /// While the part lives, the caller lets nobody take another part that overlaps it.
    #[must_use]
    pub unsafe fn part(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(
            start.checked_add(len).is_some_and(|end| end <= self.len),
            "part {start}+{len} of {}",
            self.len
        );
        // SAFETY: inside the slice by the assertion, borrowed mutably for 'a by `new`, and not
        // overlapping another part as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

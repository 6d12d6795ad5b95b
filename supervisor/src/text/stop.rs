//! Finds stop strings in text that arrives in pieces.
//!
//! Text goes out as soon as it cannot be part of a stop string any more, and not before: what is
//! held back is always the longest end of the text that begins some stop string.

/// A stop string was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopHit {
    /// Its index in the list given to [`StopMatcher::new`].
    pub index: usize,
    /// The stop string itself.
    pub stop: String,
}

/// One stop string and how much of it the text ends with.
#[derive(Debug, Clone)]
struct Needle {
    index: usize,
    text: Box<str>,
    /// Entry `i`: length of the longest proper border of the first `i + 1` bytes.
    borders: Box<[u32]>,
    matched: usize,
}

/// Looks for stop strings in a stream of text.
///
/// The match that ends first wins; of several that end there, the longest. The stop string itself
/// is never given out, and neither is anything after it.
///
/// Source: Knuth, Morris and Pratt, "Fast pattern matching in strings", 1977; one automaton per
/// stop string.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    needles: Vec<Needle>,
    /// Text not given out yet. No longer than the longest stop string, between calls.
    held: String,
    is_over: bool,
}

impl StopMatcher {
    /// A matcher for these strings. Empty ones are ignored; their index still counts.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        let needles = stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| !stop.is_empty())
            .map(|(index, stop)| Needle {
                index,
                text: stop.as_str().into(),
                borders: borders(stop.as_bytes()),
                matched: 0,
            })
            .collect();
        Self { needles, held: String::new(), is_over: false }
    }

    /// Takes the next piece of text and appends to `out` what may be shown. After a hit the
    /// stream is over: later text is swallowed.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<StopHit> {
        if self.is_over {
            return None;
        }
        if self.needles.is_empty() {
            out.push_str(text);
            return None;
        }
        let known = self.held.len();
        self.held.push_str(text);
        for at in known..self.held.len() {
            let byte = self.held.as_bytes()[at];
            let mut hit: Option<&Needle> = None;
            for needle in &mut self.needles {
                if needle.step(byte) && hit.is_none_or(|best| best.text.len() < needle.text.len()) {
                    hit = Some(needle);
                }
            }
            if let Some(needle) = hit {
                out.push_str(&self.held[..at + 1 - needle.text.len()]);
                let hit = StopHit { index: needle.index, stop: needle.text.to_string() };
                self.held = String::new();
                self.is_over = true;
                return Some(hit);
            }
        }
        // A stop string begins with a whole code point, so this cut never splits one.
        let keep = self.needles.iter().map(|needle| needle.matched).max().unwrap_or(0);
        let shown = self.held.len() - keep;
        out.push_str(&self.held[..shown]);
        self.held.drain(..shown);
        None
    }

    /// The stream ended without a stop string: appends what was held back.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.is_over = true;
    }
}

impl Needle {
    /// Takes one byte; true if the stop string ends with it.
    fn step(&mut self, byte: u8) -> bool {
        let text = self.text.as_bytes();
        while self.matched > 0 && text[self.matched] != byte {
            self.matched = self.borders[self.matched - 1] as usize;
        }
        if text[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == text.len()
    }
}

fn borders(text: &[u8]) -> Box<[u32]> {
    let mut borders = vec![0u32; text.len()];
    let mut length = 0;
    for at in 1..text.len() {
        while length > 0 && text[length] != text[at] {
            length = borders[length - 1] as usize;
        }
        if text[length] == text[at] {
            length += 1;
        }
        borders[at] = u32::try_from(length).expect("stop strings are far shorter than 4 GiB");
    }
    borders.into()
}

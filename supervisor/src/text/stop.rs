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

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert_eq, proptest};

    use super::{StopHit, StopMatcher};

    fn matcher(stops: &[&str]) -> StopMatcher {
        let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
        StopMatcher::new(&stops)
    }

    #[test]
    fn a_stop_string_is_found_across_pieces_and_never_shown() {
        let (mut matcher, mut out) = (matcher(&["END"]), String::new());
        assert_eq!(matcher.push("the E", &mut out), None);
        assert_eq!(out, "the ");
        assert_eq!(matcher.push("N", &mut out), None);
        let hit = matcher.push("D and more", &mut out);
        assert_eq!(hit, Some(StopHit { index: 0, stop: "END".to_owned() }));
        assert_eq!(matcher.push("END", &mut out), None);
        matcher.finish(&mut out);
        assert_eq!(out, "the ");
    }

    #[test]
    fn what_turns_out_harmless_is_shown_at_once() {
        let (mut matcher, mut out) = (matcher(&["aab", "é!"]), String::new());
        matcher.push("aaa", &mut out);
        assert_eq!(out, "a");
        matcher.push("é", &mut out);
        assert_eq!(out, "aaa");
        matcher.push("?", &mut out);
        assert_eq!(out, "aaaé?");
        matcher.push("aa", &mut out);
        matcher.finish(&mut out);
        assert_eq!(out, "aaaé?aa");
    }

    #[test]
    fn the_first_to_end_wins_then_the_longest() {
        for (stops, text, shown, index) in [
            (&["abcd", "c"][..], "abcd", "ab", 1),
            (&["c", "bc", "abc"], "xabc", "x", 2),
            (&["", "b"], "ab", "a", 1),
            (&["b", "b"], "ab", "a", 0),
        ] {
            let mut out = String::new();
            let hit = matcher(stops).push(text, &mut out).unwrap();
            assert_eq!((out.as_str(), hit.index), (shown, index), "{stops:?}");
        }
    }

    #[test]
    fn long_texts_and_long_stops_take_linear_time() {
        let stop = format!("{}b", "a".repeat(1000));
        let (mut matcher, mut out) = (matcher(&[&stop]), String::new());
        for _ in 0..50_000 {
            assert_eq!(matcher.push("a", &mut out), None);
        }
        assert_eq!(out.len(), 49_000);
        matcher.finish(&mut out);
        assert_eq!(out.len(), 50_000);
    }

    /// Text shown and index found, by looking at the whole text.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let ending = stops.iter().enumerate().filter(|(_, stop)| {
                !stop.is_empty() && text.as_bytes()[..end].ends_with(stop.as_bytes())
            });
            let best = ending.max_by_key(|&(index, stop)| (stop.len(), usize::MAX - index));
            if let Some((index, stop)) = best {
                return (text[..end - stop.len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn any_split_gives_what_a_search_of_the_whole_gives(
            stops in prop::collection::vec("[abé]{0,4}", 0..4),
            pieces in prop::collection::vec("[abcé]{0,5}", 0..8),
        ) {
            let (mut matcher, mut out, mut hit) = (StopMatcher::new(&stops), String::new(), None);
            let mut seen = String::new();
            for piece in &pieces {
                seen.push_str(piece);
                if let Some(found) = matcher.push(piece, &mut out) {
                    hit = Some(found.index);
                    break;
                }
                // Nothing is held back without need.
                let held = &seen[out.len()..];
                let needed = (0..=seen.len()).find(|&at| {
                    let tail = &seen.as_bytes()[at..];
                    tail.is_empty() || stops.iter().any(|stop| stop.as_bytes().starts_with(tail))
                });
                prop_assert_eq!(held.len(), seen.len() - needed.unwrap());
            }
            matcher.finish(&mut out);
            prop_assert_eq!((out, hit), naive(&stops, &pieces.concat()));
        }
    }
}

//! Typed and bounded reads of an architecture's metadata keys. Every refusal names the key.

use shared::gguf::{GgufError, Metadata};

/// Most layers of a model.
pub(super) const LAYERS_MAX: u32 = 1024;

/// The keys `ARCH.*` of a weight file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys<'a> {
    metadata: &'a Metadata,
    arch: &'static str,
}

impl<'a> Keys<'a> {
    pub(super) fn new(metadata: &'a Metadata, arch: &'static str) -> Self {
        Self { metadata, arch }
    }

    pub(super) fn metadata(&self) -> &'a Metadata {
        self.metadata
    }

    /// The whole name of a key.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    /// Whether the file has the key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.metadata.get(&self.name(key)).is_some()
    }

    /// A number of things, from 1 to `most`.
    pub(super) fn count(&self, key: &str, default: Option<u32>, most: u32) -> Result<u32, String> {
        let key = self.name(key);
        let found = self.metadata.u32(&key).map_err(in_words)?;
        match found.or(default) {
            Some(value) if (1..=most).contains(&value) => Ok(value),
            Some(value) => {
                Err(format!("metadata key `{key}` is {value}, but must be between 1 and {most}"))
            }
            None => Err(missing(&key)),
        }
    }

    /// As [`count`](Self::count), required, as an index type.
    pub(super) fn size(&self, key: &str, most: u32) -> Result<usize, String> {
        Ok(self.count(key, None, most)? as usize)
    }

    /// A number within bounds.
    pub(super) fn number(
        &self,
        key: &str,
        default: Option<f64>,
        low: f64,
        high: f64,
    ) -> Result<f32, String> {
        let key = self.name(key);
        let found = self.metadata.f64(&key).map_err(in_words)?;
        match found.or(default) {
            Some(value) if (low..=high).contains(&value) => Ok(to_f32(value)),
            Some(value) => Err(format!(
                "metadata key `{key}` is {value}, but must be between {low} and {high}"
            )),
            None => Err(missing(&key)),
        }
    }

    /// A list of integers of known length.
    pub(super) fn integers(&self, key: &str, length: usize) -> Result<Vec<u64>, String> {
        let key = self.name(key);
        let values = self.metadata.u64s(&key).map_err(in_words)?.ok_or_else(|| missing(&key))?;
        check_length(&key, values.len(), length)?;
        Ok(values)
    }

    /// A list of booleans of known length.
    pub(super) fn flags(&self, key: &str, length: usize) -> Result<&'a [bool], String> {
        let key = self.name(key);
        let values = self.metadata.bools(&key).map_err(in_words)?.ok_or_else(|| missing(&key))?;
        check_length(&key, values.len(), length)?;
        Ok(values)
    }
}

fn check_length(key: &str, found: usize, wanted: usize) -> Result<(), String> {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("metadata key `{key}` lists {found} values, but must list {wanted}")),
    }
}

fn missing(key: &str) -> String {
    format!("metadata key `{key}` is missing")
}

fn in_words(error: GgufError) -> String {
    error.to_string()
}

#[expect(clippy::cast_possible_truncation, reason = "kernels compute in f32; the value is bounded")]
fn to_f32(value: f64) -> f32 {
    value as f32
}

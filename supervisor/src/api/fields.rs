//! The fields of a request object, taken one by one. `null` counts as absent everywhere.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;

/// The fields not taken yet.
#[derive(Debug)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// All fields of an object.
    #[must_use]
    pub(super) fn new(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    /// A field of any type.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// A truth value.
    pub(super) fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong(name, "true or false", &other)),
        }
    }

    /// A text.
    pub(super) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(wrong(name, "a string", &other)),
        }
    }

    /// An object.
    pub(super) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(value)) => Ok(Some(value)),
            Some(other) => Err(wrong(name, "an object", &other)),
        }
    }

    /// A whole number in a range; `3.0` is one.
    pub(super) fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match whole(&value) {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(wrong(name, &between("a whole number", &range), &value)),
        }
    }

    /// A number in a range.
    pub(super) fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(wrong(name, &between("a number", &range), &value)),
        }
    }

    /// Notes what nobody took. Unknown fields are accepted: clients send many that are not ours.
    pub(super) fn finish(self) {
        if !self.0.is_empty() {
            let names: Vec<&str> = self.0.keys().take(32).map(|name| clip(name, 64)).collect();
            tracing::debug!(fields = ?names, "ignored unknown fields of a request");
        }
    }
}

/// A whole number, written with or without a fraction of zero.
#[must_use]
pub(super) fn whole(value: &Value) -> Option<i64> {
    /// Beyond it a double does not hold every whole number.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    if let Some(number) = value.as_i64() {
        return Some(number);
    }
    let number = value.as_f64()?;
    #[expect(clippy::cast_possible_truncation, reason = "a whole number within 2^53")]
    (number.fract() == 0.0 && number.abs() <= EXACT_MAX).then_some(number as i64)
}

fn between<T: Display>(what: &str, range: &RangeInclusive<T>) -> String {
    format!("{what} between {} and {}", range.start(), range.end())
}

/// The error for a field of the wrong type or out of range.
pub(super) fn wrong(name: &str, expected: &str, value: &Value) -> ApiError {
    let found = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("the string {:?}", clip(text, 32)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    ApiError::field(name, format!("`{name}` must be {expected}, not {found}"))
}

/// At most `bytes_max` bytes of a text, cut between code points.
fn clip(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Fields, whole};

    fn fields(value: Value) -> Fields {
        let Value::Object(map) = value else { panic!("not an object") };
        Fields::new(map)
    }

    #[test]
    fn null_is_absent() {
        let mut nulls = fields(json!({"a": null, "b": null, "c": null, "d": null, "e": null}));
        assert_eq!(nulls.boolean("a").unwrap(), None);
        assert_eq!(nulls.string("b").unwrap(), None);
        assert_eq!(nulls.object("c").unwrap(), None);
        assert_eq!(nulls.integer("d", 1..=2).unwrap(), None);
        assert_eq!(nulls.number("e", 0.0..=1.0).unwrap(), None);
    }

    #[test]
    fn errors_name_the_field_and_clip_long_values() {
        let mut wrong = fields(json!({"stream": "é".repeat(1000), "n": 9, "top_p": true}));
        let error = wrong.boolean("stream").unwrap_err().body();
        assert_eq!(error["error"]["param"], "stream");
        assert!(error["error"]["message"].as_str().unwrap().len() < 120);
        let message = wrong.integer("n", 1..=8).unwrap_err().body()["error"]["message"].clone();
        assert_eq!(message, "`n` must be a whole number between 1 and 8, not 9");
        assert!(wrong.number("top_p", 0.0..=1.0).is_err());
    }

    #[test]
    fn whole_numbers() {
        for (value, expected) in [
            (json!(3), Some(3)),
            (json!(3.0), Some(3)),
            (json!(3.5), None),
            (json!(1e300), None),
            (json!(u64::MAX), None),
            (json!("3"), None),
        ] {
            assert_eq!(whole(&value), expected);
        }
    }
}

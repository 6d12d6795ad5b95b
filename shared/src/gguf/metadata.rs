//! Metadata values and typed access to them.

use super::GgufError;

/// A metadata value. Integers and floats are widened: the width in the file carries no meaning.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any unsigned integer type.
    U64(u64),
    /// Any signed integer type.
    I64(i64),
    /// Either float type.
    F64(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    String(String),
    /// An array of any of the above.
    Array(Array),
}

/// An array value, all elements of one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Any unsigned integer type.
    U64(Vec<u64>),
    /// Any signed integer type.
    I64(Vec<i64>),
    /// Either float type.
    F64(Vec<f64>),
    /// Booleans.
    Bool(Vec<bool>),
    /// Strings.
    Strings(Vec<String>),
}

impl Value {
    fn describe(&self) -> String {
        match self {
            Self::U64(value) => value.to_string(),
            Self::I64(value) => value.to_string(),
            Self::F64(value) => value.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::String(value) => {
                let start: String = value.chars().take(40).collect();
                format!("the string {start:?}")
            }
            Self::Array(_) => "an array".to_owned(),
        }
    }
}

/// Metadata entries in file order, found by key.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    /// Indices into `entries`, sorted by key.
    sorted: Vec<usize>,
}

impl Metadata {
    pub(super) fn insert(&mut self, key: String, value: Value) {
        let place = self.search(&key).unwrap_or_else(|place| place);
        self.sorted.insert(place, self.entries.len());
        self.entries.push((key, value));
    }

    fn search(&self, key: &str) -> Result<usize, usize> {
        self.sorted.binary_search_by(|&index| self.entries[index].0.as_str().cmp(key))
    }

    /// All entries in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.search(key).ok().map(|place| &self.entries[self.sorted[place]].1)
    }

    /// An integer that fits 64 unsigned bits.
    ///
    /// # Errors
    ///
    /// [`GgufError::WrongType`] if the value is anything else.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.typed(key, "an integer of at least 0", |value| match value {
            Value::U64(value) => Some(*value),
            Value::I64(value) => u64::try_from(*value).ok(),
            _ => None,
        })
    }

    /// An integer that fits 32 unsigned bits.
    ///
    /// # Errors
    ///
    /// [`GgufError::WrongType`] if the value is anything else.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.typed(key, "an integer between 0 and 2^32 - 1", |value| match value {
            Value::U64(value) => u32::try_from(*value).ok(),
            Value::I64(value) => u32::try_from(*value).ok(),
            _ => None,
        })
    }

    /// A number.
    ///
    /// # Errors
    ///
    /// [`GgufError::WrongType`] if the value is not a finite number.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a finite number", |value| match value {
            Value::F64(value) if value.is_finite() => Some(*value),
            Value::U64(value) => u32::try_from(*value).ok().map(f64::from),
            Value::I64(value) => i32::try_from(*value).ok().map(f64::from),
            _ => None,
        })
    }

    /// A boolean.
    ///
    /// # Errors
    ///
    /// [`GgufError::WrongType`] if the value is anything else.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a boolean", |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// A string.
    ///
    /// # Errors
    ///
    /// [`GgufError::WrongType`] if the value is anything else.
    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "a string", |value| match value {
            Value::String(value) => Some(value.as_str()),
            _ => None,
        })
    }

    /// An array of strings.
    ///
    /// # Errors
    ///
    /// [`GgufError::WrongType`] if the value is anything else.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, GgufError> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::Strings(values)) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// An array of numbers, as floats.
    ///
    /// # Errors
    ///
    /// [`GgufError::WrongType`] if the value is anything else.
    pub fn f64s(&self, key: &str) -> Result<Option<&[f64]>, GgufError> {
        self.typed(key, "an array of floats", |value| match value {
            Value::Array(Array::F64(values)) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// An array of integers that fit 32 unsigned bits.
    ///
    /// # Errors
    ///
    /// [`GgufError::WrongType`] if the value is anything else.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, GgufError> {
        self.typed(key, "an array of integers between 0 and 2^32 - 1", |value| match value {
            Value::Array(Array::U64(values)) => {
                values.iter().map(|&value| u32::try_from(value).ok()).collect()
            }
            Value::Array(Array::I64(values)) => {
                values.iter().map(|&value| u32::try_from(value).ok()).collect()
            }
            _ => None,
        })
    }

    /// An array of integers that fit 64 unsigned bits.
    ///
    /// # Errors
    ///
    /// [`GgufError::WrongType`] if the value is anything else.
    pub fn u64s(&self, key: &str) -> Result<Option<Vec<u64>>, GgufError> {
        self.typed(key, "an array of integers of at least 0", |value| match value {
            Value::Array(Array::U64(values)) => Some(values.clone()),
            Value::Array(Array::I64(values)) => {
                values.iter().map(|&value| u64::try_from(value).ok()).collect()
            }
            _ => None,
        })
    }

    /// An array of booleans.
    ///
    /// # Errors
    ///
    /// [`GgufError::WrongType`] if the value is anything else.
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>, GgufError> {
        self.typed(key, "an array of booleans", |value| match value {
            Value::Array(Array::Bool(values)) => Some(values.as_slice()),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| GgufError::WrongType {
            key: key.to_owned(),
            found: value.describe(),
            expected,
        })
    }
}

//! A bounded parser for weight-file metadata (GGUF versions 2 and 3), over bytes.
//!
//! ```text
//! ┌───────┬─────────┬──────────────┬─────────────┬──────────────────┬───────────────────┬─────┬──────┐
//! │ magic │ version │ tensor count │ entry count │ metadata entries │ tensor directory  │ pad │ data │
//! │ GGUF  │ u32     │ u64          │ u64         │ key, type, value │ name, dims, type, │     │      │
//! │       │         │              │             │                  │ offset in data    │     │      │
//! └───────┴─────────┴──────────────┴─────────────┴──────────────────┴───────────────────┴─────┴──────┘
//! ```
//!
//! The header's length is not written anywhere, so a reader hands over what it has and the length
//! of the file: [`GgufError::Incomplete`] asks for more of the header, every other error is final.
//! Each count and length is checked against the file and against [`crate::limits`] before
//! anything is allocated for it, and each tensor lies inside the file and overlaps no other.
//!
//! Source: the GGUF specification in the ggml repository, `docs/gguf.md`.

mod metadata;
mod tensor_type;

pub use metadata::{Array, Metadata, Value};
pub use tensor_type::TensorType;

use crate::limits::{
    GGUF_ARRAY_MAX, GGUF_ENTRIES_MAX, GGUF_HEADER_BYTES_MAX, GGUF_KEY_BYTES_MAX,
    GGUF_STRING_BYTES_MAX, GGUF_TENSORS_MAX,
};

/// Bytes that tell a GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";

const ALIGNMENT_DEFAULT: u32 = 32;
const ALIGNMENT_MAX: u32 = 1 << 20;
const DIMS_MAX: usize = 4;

/// A parsed header.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// Format version, 2 or 3.
    pub version: u32,
    /// Alignment of tensor data, in bytes.
    pub alignment: u32,
    /// The metadata entries.
    pub metadata: Metadata,
    /// The tensor directory, in file order.
    pub tensors: Vec<TensorInfo>,
    /// Where tensor data starts, in bytes from the start of the file.
    pub data_offset: u64,
    /// BLAKE3 of the header: two files with the same one have the same metadata and tensors.
    pub header_digest: [u8; 32],
}

/// One entry of the tensor directory. Its bytes are known to lie inside the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique in the file.
    pub name: String,
    /// Sizes, fastest first: `[n_in, n_out]` for a matrix. One to four, none of them zero.
    pub dims: Vec<u64>,
    /// How the elements are stored.
    pub tensor_type: TensorType,
    /// First byte, from [`Gguf::data_offset`].
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

impl TensorInfo {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }
}

/// Why a header was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    /// The bytes given end before the header does; the file goes on. Not a fault of the file.
    #[error("the header is longer than the {have} bytes read so far")]
    Incomplete {
        /// Bytes that were given.
        have: usize,
    },
    /// The file ends inside the header or inside a tensor.
    #[error("the file is truncated: {what} needs {needed} bytes, the file has {file_len}")]
    Truncated {
        /// What does not fit.
        what: String,
        /// Length the file would need at least.
        needed: u64,
        /// Length it has.
        file_len: u64,
    },
    /// Not a GGUF file at all.
    #[error("not a GGUF file: it starts with {0:02x?}, not \"GGUF\"")]
    Magic([u8; 4]),
    /// A version this build does not read.
    #[error("GGUF version {0} is not supported (2 and 3 are){hint}", hint = version_hint(*.0))]
    Version(u32),
    /// A count or length beyond what this build accepts.
    #[error("{what} is {value}, more than the limit of {limit}")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Its value.
        value: u64,
        /// The most accepted.
        limit: u64,
    },
    /// A rule of the format is broken; says which, and where.
    #[error("{0}")]
    Invalid(String),
    /// A metadata value is not of the type the model needs.
    #[error("metadata key `{key}` is {found}, but must be {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// What was found.
        found: String,
        /// What is needed.
        expected: &'static str,
    },
    /// A metadata entry the model cannot do without.
    #[error("metadata key `{0}` is missing")]
    Missing(String),
}

fn version_hint(version: u32) -> &'static str {
    match version.swap_bytes() {
        1..=3 => "; this looks like a big-endian file",
        _ => "",
    }
}

/// Parses the header at the start of a file of `file_len` bytes, of which `bytes` is the
/// beginning.
///
/// # Errors
///
/// [`GgufError::Incomplete`] if more of the file must be read first; every other error is final.
pub fn parse(bytes: &[u8], file_len: u64) -> Result<Gguf, GgufError> {
    let mut reader = Reader { bytes, at: 0, file_len };
    let magic = reader.array::<4>("the magic")?;
    if magic != MAGIC {
        return Err(GgufError::Magic(magic));
    }
    let version = reader.u32("the version")?;
    if !(2..=3).contains(&version) {
        return Err(GgufError::Version(version));
    }
    let tensor_count = reader.count("the tensor count", GGUF_TENSORS_MAX)?;
    let entry_count = reader.count("the number of metadata entries", GGUF_ENTRIES_MAX)?;

    let mut metadata = Metadata::default();
    for index in 0..entry_count {
        let (key, value) = reader.entry(index)?;
        if metadata.get(&key).is_some() {
            return Err(GgufError::Invalid(format!("metadata key `{key}` stands twice")));
        }
        metadata.insert(key, value);
    }
    let alignment = alignment(&metadata)?;

    // A directory entry is at least 33 bytes, so a hostile count costs no memory up front.
    let mut tensors = Vec::with_capacity(tensor_count.min(bytes.len() / 33));
    for index in 0..tensor_count {
        tensors.push(reader.tensor(index, alignment)?);
    }
    let data_offset = (reader.at as u64).next_multiple_of(u64::from(alignment));
    check_places(&tensors, data_offset, file_len)?;
    let header_digest = *blake3::hash(&bytes[..reader.at]).as_bytes();
    Ok(Gguf { version, alignment, metadata, tensors, data_offset, header_digest })
}

fn alignment(metadata: &Metadata) -> Result<u32, GgufError> {
    let alignment = metadata.u32("general.alignment")?.unwrap_or(ALIGNMENT_DEFAULT);
    if !alignment.is_power_of_two() || !(8..=ALIGNMENT_MAX).contains(&alignment) {
        return Err(GgufError::Invalid(format!(
            "metadata key `general.alignment` is {alignment}, but must be a power of two between \
             8 and {ALIGNMENT_MAX}"
        )));
    }
    Ok(alignment)
}

/// Every tensor inside the file, no two of one name, no two over the same bytes.
fn check_places(tensors: &[TensorInfo], data_offset: u64, file_len: u64) -> Result<(), GgufError> {
    let mut by_name: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    by_name.sort_unstable();
    if let Some(pair) = by_name.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(GgufError::Invalid(format!("tensor `{}` stands twice", pair[0])));
    }
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_unstable_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        // The sum was checked when the tensor was read.
        if pair[0].offset + pair[0].size > pair[1].offset {
            return Err(GgufError::Invalid(format!(
                "tensors `{}` and `{}` overlap in the file",
                pair[0].name, pair[1].name
            )));
        }
    }
    if let Some(last) = by_offset.last() {
        let needed = data_offset.saturating_add(last.offset + last.size);
        if needed > file_len {
            let what = format!("tensor `{}`", last.name);
            return Err(GgufError::Truncated { what, needed, file_len });
        }
    }
    Ok(())
}

/// A cursor that never reads past what it was given.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    file_len: u64,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize, what: &str) -> Result<&'a [u8], GgufError> {
        let end = self.at.saturating_add(length);
        if let Some(taken) = self.bytes.get(self.at..end) {
            self.at = end;
            return Ok(taken);
        }
        if end as u64 > self.file_len {
            let what = what.to_owned();
            return Err(GgufError::Truncated { what, needed: end as u64, file_len: self.file_len });
        }
        if self.bytes.len() >= GGUF_HEADER_BYTES_MAX {
            return Err(GgufError::TooLarge {
                what: "the header".to_owned(),
                value: end as u64,
                limit: GGUF_HEADER_BYTES_MAX as u64,
            });
        }
        Err(GgufError::Incomplete { have: self.bytes.len() })
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let taken = self.take(N, what)?;
        Ok(taken.try_into().expect("take gives the length asked for"))
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn count(&mut self, what: &str, limit: usize) -> Result<usize, GgufError> {
        let value = self.u64(what)?;
        match usize::try_from(value) {
            Ok(count) if count <= limit => Ok(count),
            _ => Err(GgufError::TooLarge { what: what.to_owned(), value, limit: limit as u64 }),
        }
    }

    fn string(&mut self, what: &str, limit: usize) -> Result<String, GgufError> {
        let length = self.count(&format!("the length of {what}"), limit)?;
        let bytes = self.take(length, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(GgufError::Invalid(format!("{what} is not valid UTF-8"))),
        }
    }

    fn entry(&mut self, index: usize) -> Result<(String, Value), GgufError> {
        let key = self.string(&format!("the key of metadata entry {index}"), GGUF_KEY_BYTES_MAX)?;
        if key.is_empty() {
            return Err(GgufError::Invalid(format!("metadata entry {index} has an empty key")));
        }
        let what = format!("metadata key `{key}`");
        let type_id = self.u32(&what)?;
        let value = match type_id {
            8 => Value::String(self.string(&what, GGUF_STRING_BYTES_MAX)?),
            9 => Value::Array(self.array_value(&what)?),
            _ => self.scalar(type_id, &what)?,
        };
        Ok((key, value))
    }

    fn scalar(&mut self, type_id: u32, what: &str) -> Result<Value, GgufError> {
        Ok(match type_id {
            0 => Value::U64(u64::from(self.array::<1>(what)?[0])),
            1 => Value::I64(i64::from(i8::from_le_bytes(self.array(what)?))),
            2 => Value::U64(u64::from(u16::from_le_bytes(self.array(what)?))),
            3 => Value::I64(i64::from(i16::from_le_bytes(self.array(what)?))),
            4 => Value::U64(u64::from(self.u32(what)?)),
            5 => Value::I64(i64::from(i32::from_le_bytes(self.array(what)?))),
            6 => Value::F64(f64::from(f32::from_le_bytes(self.array(what)?))),
            7 => match self.array::<1>(what)?[0] {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => {
                    let message = format!("{what} is a boolean of value {other}, not 0 or 1");
                    return Err(GgufError::Invalid(message));
                }
            },
            10 => Value::U64(self.u64(what)?),
            11 => Value::I64(i64::from_le_bytes(self.array(what)?)),
            12 => Value::F64(f64::from_le_bytes(self.array(what)?)),
            _ => {
                return Err(GgufError::Invalid(format!("{what} has the unknown type {type_id}")));
            }
        })
    }

    fn array_value(&mut self, what: &str) -> Result<Array, GgufError> {
        let type_id = self.u32(what)?;
        let length = self.count(&format!("the number of elements of {what}"), GGUF_ARRAY_MAX)?;
        let element_bytes_min = match type_id {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => {
                return Err(GgufError::Invalid(format!(
                    "{what} is an array of arrays, which no known model uses"
                )));
            }
            _ => {
                return Err(GgufError::Invalid(format!(
                    "{what} is an array of the unknown type {type_id}"
                )));
            }
        };
        // The elements' least size must fit before room is made for them.
        let start = self.at;
        self.take(length * element_bytes_min, what)?;
        self.at = start;
        self.elements(type_id, length, what)
    }

    fn elements(&mut self, type_id: u32, length: usize, what: &str) -> Result<Array, GgufError> {
        if type_id == 8 {
            let mut strings = Vec::with_capacity(length);
            for _ in 0..length {
                strings.push(self.string(what, GGUF_STRING_BYTES_MAX)?);
            }
            return Ok(Array::Strings(strings));
        }
        let mut scalars = Scalars::default();
        for _ in 0..length {
            scalars.push(self.scalar(type_id, what)?);
        }
        Ok(match type_id {
            6 | 12 => Array::F64(scalars.f64),
            7 => Array::Bool(scalars.bool),
            1 | 3 | 5 | 11 => Array::I64(scalars.i64),
            _ => Array::U64(scalars.u64),
        })
    }

    fn tensor(&mut self, index: usize, alignment: u32) -> Result<TensorInfo, GgufError> {
        let name = self.string(&format!("the name of tensor {index}"), GGUF_KEY_BYTES_MAX)?;
        let what = format!("tensor `{name}`");
        let dim_count = self.u32(&what)? as usize;
        if name.is_empty() || !(1..=DIMS_MAX).contains(&dim_count) {
            return Err(GgufError::Invalid(format!(
                "tensor {index} (`{name}`) has {dim_count} dimensions; it needs a name and 1 to \
                 {DIMS_MAX} dimensions"
            )));
        }
        let mut dims = Vec::with_capacity(dim_count);
        for _ in 0..dim_count {
            dims.push(self.u64(&what)?);
        }
        let type_id = self.u32(&what)?;
        let offset = self.u64(&what)?;
        let Some(tensor_type) = TensorType::from_id(type_id) else {
            return Err(GgufError::Invalid(format!("{what} has the unknown type {type_id}")));
        };
        let Some(size) = tensor_type.size(&dims) else {
            return Err(GgufError::Invalid(format!(
                "{what} has the shape {dims:?}, which type {} cannot store",
                tensor_type.name()
            )));
        };
        if !offset.is_multiple_of(u64::from(alignment)) {
            return Err(GgufError::Invalid(format!(
                "{what} starts at {offset}, which is no multiple of the alignment {alignment}"
            )));
        }
        if offset.checked_add(size).is_none_or(|end| end > self.file_len) {
            let needed = offset.saturating_add(size);
            return Err(GgufError::Truncated { what, needed, file_len: self.file_len });
        }
        Ok(TensorInfo { name, dims, tensor_type, offset, size })
    }
}

/// The elements of one array; one of the vectors is used.
#[derive(Default)]
struct Scalars {
    u64: Vec<u64>,
    i64: Vec<i64>,
    f64: Vec<f64>,
    bool: Vec<bool>,
}

impl Scalars {
    fn push(&mut self, value: Value) {
        match value {
            Value::U64(value) => self.u64.push(value),
            Value::I64(value) => self.i64.push(value),
            Value::F64(value) => self.f64.push(value),
            Value::Bool(value) => self.bool.push(value),
            Value::String(_) | Value::Array(_) => unreachable!("scalar() gives scalars"),
        }
    }
}

#[cfg(test)]
mod tests;

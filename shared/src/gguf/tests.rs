use super::{Gguf, GgufError, TensorType, parse};
use proptest::prelude::{any, prop, proptest};

/// Writes headers as the specification says, with every field open to spoiling.
#[derive(Clone)]
struct Writer {
    version: u32,
    entries: Vec<(Vec<u8>, u32, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32, u64)>,
    data_len: u64,
}

fn string(text: &[u8]) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text);
    bytes
}

impl Writer {
    fn new() -> Self {
        let entries = vec![
            (b"general.architecture".to_vec(), 8, string(b"llama")),
            (b"llama.block_count".to_vec(), 4, 2_u32.to_le_bytes().to_vec()),
        ];
        let tensors = vec![
            ("a".to_owned(), vec![32, 2], TensorType::Q8_0.id(), 0),
            ("b".to_owned(), vec![8], TensorType::F32.id(), 96),
        ];
        Self { version: 3, entries, tensors, data_len: 128 }
    }

    fn entry(mut self, key: &[u8], type_id: u32, value: &[u8]) -> Self {
        self.entries.push((key.to_vec(), type_id, value.to_vec()));
        self
    }

    fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        self.tensors.push((name.to_owned(), dims.to_vec(), type_id, offset));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.entries.len() as u64).to_le_bytes());
        for (key, type_id, value) in &self.entries {
            out.extend_from_slice(&string(key));
            out.extend_from_slice(&type_id.to_le_bytes());
            out.extend_from_slice(value);
        }
        for (name, dims, type_id, offset) in &self.tensors {
            out.extend_from_slice(&string(name.as_bytes()));
            out.extend_from_slice(&u32::try_from(dims.len()).unwrap().to_le_bytes());
            for dim in dims {
                out.extend_from_slice(&dim.to_le_bytes());
            }
            out.extend_from_slice(&type_id.to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32), 0);
        let data_len = usize::try_from(self.data_len).unwrap();
        out.resize(out.len() + data_len, 0);
        out
    }

    fn parse(&self) -> Result<Gguf, GgufError> {
        let bytes = self.bytes();
        parse(&bytes, bytes.len() as u64)
    }

    fn refusal(&self) -> String {
        self.parse().unwrap_err().to_string()
    }
}

#[test]
fn a_good_header_is_read() {
    let gguf = Writer::new().parse().unwrap();
    assert_eq!(gguf.version, 3);
    assert_eq!(gguf.metadata.str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(gguf.metadata.u32("llama.block_count").unwrap(), Some(2));
    assert_eq!(gguf.tensors[0].size, 68);
    assert_eq!(gguf.tensors[1].elements(), 8);
    assert_eq!(gguf.data_offset % 32, 0);
}

#[test]
fn every_shorter_file_is_refused_and_every_shorter_buffer_asks_for_more() {
    let bytes = Writer::new().bytes();
    let whole = parse(&bytes, bytes.len() as u64).unwrap();
    for length in 0..bytes.len() {
        parse(&bytes[..length], length as u64).unwrap_err();
        match parse(&bytes[..length], bytes.len() as u64) {
            Ok(gguf) => assert_eq!(gguf, whole),
            Err(error) => assert_eq!(error, GgufError::Incomplete { have: length }),
        }
    }
}

#[test]
fn lengths_beyond_the_file_cost_no_memory() {
    for type_id in [0, 4, 8, 10] {
        let mut value = u32::to_le_bytes(type_id).to_vec();
        value.extend_from_slice(&(1_u64 << 24).to_le_bytes());
        let refusal = Writer::new().entry(b"k", 9, &value).refusal();
        assert!(refusal.contains("truncated"), "{refusal}");
    }
    let refusal = Writer::new().entry(b"k", 8, &(1_u64 << 62).to_le_bytes()).refusal();
    assert!(refusal.contains("more than the limit"), "{refusal}");
}

#[test]
fn each_broken_rule_is_named() {
    let good = Writer::new;
    let align = |value: u32| good().entry(b"general.alignment", 4, &value.to_le_bytes()).refusal();
    let f32 = TensorType::F32.id();
    let cases = [
        (Writer { version: 1, ..good() }.refusal(), "version 1"),
        (Writer { version: 3_u32.swap_bytes(), ..good() }.refusal(), "big-endian"),
        (good().entry(b"", 4, &[0; 4]).refusal(), "empty key"),
        (good().entry(b"general.architecture", 4, &[0; 4]).refusal(), "stands twice"),
        (good().entry(b"\xff", 4, &[0; 4]).refusal(), "not valid UTF-8"),
        (good().entry(&[b'k'; 70_000], 4, &[0; 4]).refusal(), "more than the limit of 65535"),
        (good().entry(b"k", 99, &[]).refusal(), "unknown type 99"),
        (good().entry(b"k", 7, &[2]).refusal(), "boolean of value 2"),
        (good().entry(b"k", 9, &[9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).refusal(), "of arrays"),
        (align(0), "power of two"),
        (align(3), "power of two"),
        (align(1 << 30), "power of two"),
        (good().tensor("a", &[8], f32, 0).refusal(), "`a` stands twice"),
        (good().tensor("c", &[8], f32, 64).refusal(), "overlap"),
        (good().tensor("c", &[8], 31, 128).refusal(), "unknown type 31"),
        (good().tensor("c", &[31, 2], TensorType::Q8_0.id(), 128).refusal(), "cannot store"),
        (good().tensor("c", &[0], f32, 128).refusal(), "cannot store"),
        (good().tensor("c", &[u64::MAX, 4], f32, 128).refusal(), "cannot store"),
        (good().tensor("c", &[], f32, 128).refusal(), "dimensions"),
        (good().tensor("c", &[8], f32, 100).refusal(), "multiple of the alignment"),
        (good().tensor("c", &[8], f32, 128).refusal(), "truncated: tensor `c`"),
        (good().tensor("c", &[8], f32, u64::MAX - 31).refusal(), "truncated: tensor `c`"),
    ];
    for (refusal, expected) in cases {
        assert!(refusal.contains(expected), "{refusal:?} should contain {expected:?}");
    }
    let refusal = parse(b"PK\x03\x04 something else", 21).unwrap_err().to_string();
    assert!(refusal.contains("not a GGUF file"), "{refusal}");
}

#[test]
fn a_value_of_another_type_is_named_with_what_was_found() {
    let gguf = Writer::new().parse().unwrap();
    let error = gguf.metadata.u32("general.architecture").unwrap_err().to_string();
    assert!(error.contains("general.architecture") && error.contains("llama"), "{error}");
}

#[test]
fn sizes_follow_blocks() {
    assert_eq!(TensorType::Q4K.size(&[512, 3]), Some(2 * 3 * 144));
    assert_eq!(TensorType::Q4K.size(&[128]), None);
    for &tensor_type in TensorType::ALL {
        assert_eq!(TensorType::from_id(tensor_type.id()), Some(tensor_type));
        assert!(tensor_type.block_len() > 0 && tensor_type.block_size() > 0);
    }
}

proptest! {
    #[test]
    fn any_flipped_bytes_are_a_header_or_an_error(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let array = [4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0];
        let mut bytes = Writer::new().entry(b"k", 9, &array).bytes();
        for (index, byte) in flips {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(gguf) = parse(&bytes, bytes.len() as u64) {
            for tensor in &gguf.tensors {
                assert!(gguf.data_offset + tensor.offset + tensor.size <= bytes.len() as u64);
            }
        }
    }

    #[test]
    fn any_bytes_after_the_magic_are_a_header_or_an_error(
        tail in prop::collection::vec(any::<u8>(), 0..256), file_len in any::<u64>(),
    ) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend_from_slice(&tail);
        let _ = parse(&bytes, file_len.max(bytes.len() as u64));
    }
}

//! Small random `llama` files, written by the tests themselves, and a directory to keep them in.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use shared::ids::{Position, TokenId};
use strata_worker::backend::Cpu;
use strata_worker::engine::{Engine, EngineOptions, LogitsWanted, Part, SlotIndex};

pub const VOCAB_SIZE: u32 = 96;
pub const CONTEXT_LEN: u32 = 512;

/// Ids of ggml types that the tests write.
pub const F32: u32 = 0;
pub const F16: u32 = 1;
pub const Q4_0: u32 = 2;
pub const Q8_0: u32 = 8;
pub const I8: u32 = 24;

/// A directory that goes away with the test.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("strata-worker-test-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[derive(Debug, Clone)]
pub enum Value {
    U16(u16),
    U32(u32),
    I32(i32),
    F32(f32),
    Str(&'static str),
}

#[derive(Debug, Clone)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub type_id: u32,
    pub bytes: Vec<u8>,
}

/// A weight file in the making. Tests change what they like before writing it.
#[derive(Debug, Clone)]
pub struct File {
    pub entries: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
}

impl File {
    /// Two layers, grouped heads, tied output, matrices stored as `type_id`.
    pub fn tiny(type_id: u32, seed: u64) -> Self {
        let (d_model, d_ff, q_width, kv_width) = (64, 96, 64, 32);
        let mut file = Self { entries: entries(), tensors: Vec::new() };
        let mut random = Random(seed);
        let mut add = |name: &str, dims: &[u64], type_id: u32| {
            let tensor = random.tensor(name, dims, type_id);
            file.tensors.push(tensor);
        };
        add("token_embd.weight", &[d_model, u64::from(VOCAB_SIZE)], type_id);
        for layer in 0..2 {
            let mut add = |stem: &str, dims: &[u64], type_id: u32| {
                add(&format!("blk.{layer}.{stem}.weight"), dims, type_id);
            };
            add("attn_norm", &[d_model], F32);
            add("attn_q", &[d_model, q_width], type_id);
            add("attn_k", &[d_model, kv_width], type_id);
            add("attn_v", &[d_model, kv_width], type_id);
            add("attn_output", &[q_width, d_model], type_id);
            add("ffn_norm", &[d_model], F32);
            add("ffn_gate", &[d_model, d_ff], type_id);
            add("ffn_up", &[d_model, d_ff], type_id);
            add("ffn_down", &[d_ff, d_model], type_id);
        }
        add("output_norm.weight", &[d_model], F32);
        file
    }

    pub fn set(&mut self, key: &str, value: Value) {
        match self.entries.iter_mut().find(|(name, _)| name == key) {
            Some(entry) => entry.1 = value,
            None => self.entries.push((key.to_owned(), value)),
        }
    }

    pub fn unset(&mut self, key: &str) {
        self.entries.retain(|(name, _)| name != key);
    }

    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            put_str(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0_u64;
        for tensor in &self.tensors {
            put_str(&mut out, &tensor.name);
            out.extend(u32::try_from(tensor.dims.len()).unwrap().to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + tensor.bytes.len() as u64).next_multiple_of(32);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(&tensor.bytes);
        }
        out
    }

    pub fn write(&self, path: &Path) {
        fs::write(path, self.bytes()).unwrap();
    }

    /// The file in `count` parts; gives back their paths.
    pub fn write_split(&self, dir: &TempDir, count: u16) -> Vec<PathBuf> {
        let per_part = self.tensors.len().div_ceil(usize::from(count));
        let mut paths = Vec::new();
        for (number, tensors) in (0_u16..).zip(self.tensors.chunks(per_part)) {
            let mut part = Self { entries: Vec::new(), tensors: tensors.to_vec() };
            if number == 0 {
                part.entries = self.entries.clone();
            }
            part.set("split.no", Value::U16(number));
            part.set("split.count", Value::U16(count));
            let total = i32::try_from(self.tensors.len()).unwrap();
            part.set("split.tensors.count", Value::I32(total));
            let path = dir.file(&format!("m-{:05}-of-{count:05}.gguf", number + 1));
            part.write(&path);
            paths.push(path);
        }
        paths
    }
}

fn entries() -> Vec<(String, Value)> {
    let entry = |key: &str, value| (key.to_owned(), value);
    vec![
        entry("general.architecture", Value::Str("llama")),
        entry("general.name", Value::Str("tiny")),
        entry("llama.block_count", Value::U32(2)),
        entry("llama.embedding_length", Value::U32(64)),
        entry("llama.feed_forward_length", Value::U32(96)),
        entry("llama.attention.head_count", Value::U32(4)),
        entry("llama.attention.head_count_kv", Value::U32(2)),
        entry("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        entry("llama.context_length", Value::U32(CONTEXT_LEN)),
    ]
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let (type_id, bytes) = match *value {
        Value::U16(value) => (2_u32, value.to_le_bytes().to_vec()),
        Value::U32(value) => (4, value.to_le_bytes().to_vec()),
        Value::I32(value) => (5, value.to_le_bytes().to_vec()),
        Value::F32(value) => (6, value.to_le_bytes().to_vec()),
        Value::Str(text) => {
            let mut bytes = Vec::new();
            put_str(&mut bytes, text);
            (8, bytes)
        }
    };
    out.extend(type_id.to_le_bytes());
    out.extend(bytes);
}

/// A generator good enough for weights (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.next() % u64::from(bound)).unwrap()
    }

    /// Between -0.5 and 0.5, in steps that f16 holds exactly.
    fn weight(&mut self) -> f32 {
        f32::from(u16::try_from(self.below(1024)).unwrap()) / 1024.0 - 0.5
    }

    fn tensor(&mut self, name: &str, dims: &[u64], type_id: u32) -> Tensor {
        let count = dims.iter().product::<u64>();
        let mut bytes = Vec::new();
        match type_id {
            F32 => (0..count).for_each(|_| bytes.extend((self.weight() + 1.0).to_le_bytes())),
            F16 => (0..count).for_each(|_| {
                bytes.extend(half::f16::from_f32(self.weight()).to_le_bytes());
            }),
            Q4_0 | Q8_0 => (0..count / 32).for_each(|_| {
                let (code_bytes, scale) = if type_id == Q8_0 { (32, 0.004) } else { (16, 0.05) };
                bytes.extend(half::f16::from_f32(scale).to_le_bytes());
                (0..code_bytes).for_each(|_| bytes.push(self.next().to_le_bytes()[0]));
            }),
            other => panic!("no weights of type {other}"),
        }
        Tensor { name: name.to_owned(), dims: dims.to_vec(), type_id, bytes }
    }

    pub fn tokens(&mut self, count: usize) -> Vec<TokenId> {
        (0..count).map(|_| TokenId(self.below(VOCAB_SIZE))).collect()
    }
}

pub fn options() -> EngineOptions {
    EngineOptions { slots: 4, prefill_chunk: 96, threads: 1, ..EngineOptions::default() }
}

pub fn open(path: &Path, options: &EngineOptions) -> Engine<Cpu> {
    Engine::open(path, options, &mut |_, _| ()).unwrap()
}

/// Why the file is refused.
pub fn refusal(path: &Path) -> String {
    match Engine::<Cpu>::open(path, &options(), &mut |_, _| ()) {
        Ok(_) => panic!("{} was accepted", path.display()),
        Err(error) => error.to_string(),
    }
}

/// Computes parts and gives back the bits of the wanted rows.
pub fn forward(engine: &mut Engine<Cpu>, parts: &[Part<'_>]) -> Vec<Vec<u32>> {
    let logits = engine.forward(parts, &mut || ControlFlow::Continue(())).unwrap().unwrap();
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    logits.iter().map(|row| bits(row.values)).collect()
}

/// The rows of a sequence computed in chunks of these lengths, the last repeated, in one slot.
pub fn rows_in_chunks(
    engine: &mut Engine<Cpu>,
    slot: SlotIndex,
    tokens: &[TokenId],
    chunks: &[usize],
) -> Vec<Vec<u32>> {
    let mut rows = Vec::new();
    let mut lengths = chunks.iter().copied().chain(std::iter::repeat(*chunks.last().unwrap()));
    let mut rest = tokens;
    while !rest.is_empty() {
        let count = lengths.next().unwrap().min(rest.len());
        let (chunk, after) = rest.split_at(count);
        let start = engine.length(slot);
        let part = Part { slot, start, tokens: chunk, logits: LogitsWanted::All };
        rows.extend(forward(engine, &[part]));
        rest = after;
    }
    engine.truncate(slot, Position(0));
    rows
}

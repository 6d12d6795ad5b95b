//! A weight file of a few hundred kilobytes, made on the spot: the `llama` architecture with
//! random weights and a vocabulary of single bytes, so that a test needs no download.
//!
//! Token ids 0 to 255 are the bytes of the same number. The real worker can run it (it babbles),
//! the fake one needs only its header. [`Builder`] also makes files that are damaged on purpose.

use std::path::{Path, PathBuf};

use shared::gguf::{self, GgufError};

/// Sizes of the model.
const D_MODEL: u64 = 128;
const D_FF: u64 = 256;
const N_HEADS: u32 = 2;
const N_KV_HEADS: u32 = 1;
const HEAD_DIM: u64 = 64;
const N_LAYERS: u32 = 2;

/// Context length written into the file.
pub const CONTEXT_LEN: u32 = 131_072;

/// The chat template, ChatML without a default system message. The message `explode` makes it
/// raise, as templates of real models do for what they do not support.
const TEMPLATE: &str = "{% for message in messages %}\
    {% if message.content == 'explode' %}{{ raise_exception('as it was told') }}{% endif %}\
    {{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// A metadata value as the file stores it.
#[derive(Debug, Clone)]
pub enum Value {
    /// Type 4.
    U32(u32),
    /// Type 6.
    F32(f32),
    /// Type 7.
    Bool(bool),
    /// Type 8.
    Str(String),
    /// Type 9 of type 8.
    Strs(Vec<String>),
    /// Type 9 of type 5.
    I32s(Vec<i32>),
}

/// A tensor: its place in the directory and its bytes.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Name.
    pub name: String,
    /// Sizes, fastest first.
    pub dims: Vec<u64>,
    /// Number of the type; 0 is F32.
    pub tensor_type: u32,
    /// Written into the directory instead of the true one.
    pub offset: Option<u64>,
    /// Data.
    pub bytes: Vec<u8>,
}

/// A weight file in pieces.
#[derive(Debug, Clone)]
pub struct Builder {
    /// Format version.
    pub version: u32,
    /// Alignment of data.
    pub alignment: usize,
    /// Metadata, in order.
    pub entries: Vec<(String, Value)>,
    /// Tensors, in order.
    pub tensors: Vec<Tensor>,
}

impl Builder {
    /// The pieces of the tiny model.
    #[must_use]
    pub fn tiny() -> Self {
        let mut builder = Self { version: 3, alignment: 32, entries: entries(), tensors: vec![] };
        let mut noise = Noise(0x5eed);
        let vocab = u64::try_from(vocabulary().len()).expect("a small number");
        let kv = u64::from(N_KV_HEADS) * HEAD_DIM;
        builder.matrix("token_embd.weight", D_MODEL, vocab, &mut noise);
        for layer in 0..N_LAYERS {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            builder.ones(&name("attn_norm"));
            builder.matrix(&name("attn_q"), D_MODEL, D_MODEL, &mut noise);
            builder.matrix(&name("attn_k"), D_MODEL, kv, &mut noise);
            builder.matrix(&name("attn_v"), D_MODEL, kv, &mut noise);
            builder.matrix(&name("attn_output"), D_MODEL, D_MODEL, &mut noise);
            builder.ones(&name("ffn_norm"));
            builder.matrix(&name("ffn_gate"), D_MODEL, D_FF, &mut noise);
            builder.matrix(&name("ffn_up"), D_MODEL, D_FF, &mut noise);
            builder.matrix(&name("ffn_down"), D_FF, D_MODEL, &mut noise);
        }
        builder.ones("output_norm.weight");
        builder.matrix("output.weight", D_MODEL, vocab, &mut noise);
        builder
    }

    fn matrix(&mut self, name: &str, n_in: u64, n_out: u64, noise: &mut Noise) {
        let bytes = (0..n_in * n_out).flat_map(|_| noise.next().to_le_bytes()).collect();
        self.push(name, vec![n_in, n_out], bytes);
    }

    fn ones(&mut self, name: &str) {
        let bytes = (0..D_MODEL).flat_map(|_| 1.0_f32.to_le_bytes()).collect();
        self.push(name, vec![D_MODEL], bytes);
    }

    fn push(&mut self, name: &str, dims: Vec<u64>, bytes: Vec<u8>) {
        let name = name.to_owned();
        self.tensors.push(Tensor { name, dims, tensor_type: 0, offset: None, bytes });
    }

    /// Sets or replaces a metadata entry.
    #[must_use]
    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.entries.retain(|(other, _)| other != key);
        self.entries.push((key.to_owned(), value));
        self
    }

    /// The file's bytes.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            put_str(&mut out, key);
            put_value(&mut out, value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            put_str(&mut out, &tensor.name);
            let n_dims = u32::try_from(tensor.dims.len()).expect("a small number");
            out.extend_from_slice(&n_dims.to_le_bytes());
            for dim in &tensor.dims {
                out.extend_from_slice(&dim.to_le_bytes());
            }
            out.extend_from_slice(&tensor.tensor_type.to_le_bytes());
            data.resize(data.len().next_multiple_of(self.alignment), 0);
            let offset = tensor.offset.unwrap_or(data.len() as u64);
            out.extend_from_slice(&offset.to_le_bytes());
            data.extend_from_slice(&tensor.bytes);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend_from_slice(&data);
        out
    }
}

/// Writes the tiny model into `folder` and gives its path.
///
/// # Panics
///
/// If it cannot be written.
#[must_use]
pub fn write(folder: &Path) -> PathBuf {
    let path = folder.join("tiny.gguf");
    std::fs::write(&path, Builder::tiny().build()).expect("the folder of a test is writable");
    path
}

/// Vocabulary size and context length of a header, as the fake worker needs them.
///
/// # Errors
///
/// Says what is wrong with the file.
pub fn sizes(header: &[u8]) -> Result<(u32, u32), String> {
    // The directory is checked against the file's length; the fake loads no data, so any will do.
    let parsed = gguf::parse(header, u64::MAX).map_err(|error: GgufError| error.to_string())?;
    let metadata = &parsed.metadata;
    let tokens = metadata.strings("tokenizer.ggml.tokens").map_err(|error| error.to_string())?;
    let count = tokens.ok_or("metadata key `tokenizer.ggml.tokens` is missing")?.len();
    let arch = metadata.str("general.architecture").map_err(|error| error.to_string())?;
    let key = format!("{}.context_length", arch.unwrap_or("llama"));
    let context = metadata.u32(&key).map_err(|error| error.to_string())?;
    Ok((u32::try_from(count).expect("bounded by the parser"), context.unwrap_or(2048)))
}

fn entries() -> Vec<(String, Value)> {
    let tokens = vocabulary();
    let last = u32::try_from(tokens.len()).expect("a small number");
    let kinds = (0..last).map(|id| if id < last - 3 { 1 } else { 3 }).collect();
    let key_values = [
        ("general.architecture", Value::Str("llama".to_owned())),
        ("general.name", Value::Str("Tiny".to_owned())),
        ("llama.context_length", Value::U32(CONTEXT_LEN)),
        ("llama.embedding_length", Value::U32(128)),
        ("llama.block_count", Value::U32(N_LAYERS)),
        ("llama.feed_forward_length", Value::U32(256)),
        ("llama.attention.head_count", Value::U32(N_HEADS)),
        ("llama.attention.head_count_kv", Value::U32(N_KV_HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.rope.dimension_count", Value::U32(64)),
        ("llama.rope.freq_base", Value::F32(10_000.0)),
        ("tokenizer.ggml.model", Value::Str("gpt2".to_owned())),
        ("tokenizer.ggml.pre", Value::Str("smollm".to_owned())),
        ("tokenizer.ggml.tokens", Value::Strs(tokens)),
        ("tokenizer.ggml.token_type", Value::I32s(kinds)),
        ("tokenizer.ggml.merges", Value::Strs(vec!["h e".to_owned(), "Ġ t".to_owned()])),
        ("tokenizer.ggml.bos_token_id", Value::U32(last - 3)),
        ("tokenizer.ggml.eos_token_id", Value::U32(last - 1)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
        ("tokenizer.chat_template", Value::Str(TEMPLATE.to_owned())),
    ];
    key_values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// All bytes in the letters that byte-level vocabularies write them with, two merges, and the
/// three control tokens.
///
/// Source: `bytes_to_unicode` of the GPT-2 encoder.
fn vocabulary() -> Vec<String> {
    let mut spare = 256..;
    let mut tokens: Vec<String> = (0..=255_u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte).to_string(),
            _ => spare.next().and_then(char::from_u32).expect("letters go on").to_string(),
        })
        .collect();
    let rest = ["he", "Ġt", "<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    tokens.extend(rest.map(str::to_owned));
    tokens
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut tag = |number: u32| out.extend_from_slice(&number.to_le_bytes());
    match value {
        Value::U32(value) => {
            tag(4);
            tag(*value);
        }
        Value::F32(value) => {
            tag(6);
            tag(value.to_bits());
        }
        Value::Bool(value) => {
            tag(7);
            out.push(u8::from(*value));
        }
        Value::Str(value) => {
            tag(8);
            put_str(out, value);
        }
        Value::Strs(values) => {
            tag(9);
            tag(8);
            out.extend_from_slice(&(values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| put_str(out, value));
        }
        Value::I32s(values) => {
            tag(9);
            tag(5);
            out.extend_from_slice(&(values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        }
    }
}

/// Uniform numbers in ±0.15, the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let top = u16::try_from(self.0 >> 48).expect("16 bits are left");
        (f32::from(top) / 65_535.0 - 0.5) * 0.3
    }
}

#[cfg(test)]
mod tests {
    use super::{Builder, CONTEXT_LEN, sizes};
    use shared::gguf;

    #[test]
    fn the_tiny_model_is_a_whole_weight_file() {
        let bytes = Builder::tiny().build();
        let parsed = gguf::parse(&bytes, bytes.len() as u64).unwrap();
        assert_eq!(parsed.tensors.len(), 3 + 9 * 2);
        assert_eq!(sizes(&bytes).unwrap(), (261, CONTEXT_LEN));
    }
}

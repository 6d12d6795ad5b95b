//! Files that cannot be used are refused with what is wrong and where; those that can, load.

mod support;

use std::fs;

use strata_worker::backend::Cpu;
use strata_worker::engine::{Engine, EngineError, EngineOptions, SlotIndex};
use support::{
    F32, File, I8, Q8_0, Random, TempDir, Value, open, options, refusal, rows_in_chunks,
};

fn refusal_of(file: &File) -> String {
    let dir = TempDir::new();
    let path = dir.file("bad.gguf");
    file.write(&path);
    refusal(&path)
}

#[track_caller]
fn assert_says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{message:?} does not say {word:?}");
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let dir = TempDir::new();
    let path = dir.file("cut.gguf");
    let whole = File::tiny(Q8_0, 1).bytes();
    let mut random = Random(11);
    let length = u32::try_from(whole.len()).unwrap();
    let cuts = (0..40).chain((0..160).map(|_| random.below(length))).chain([length - 1]);
    for cut in cuts {
        fs::write(&path, &whole[..cut as usize]).unwrap();
        let message = refusal(&path);
        assert!(message.contains("cut.gguf"), "cut at {cut}: {message}");
    }
}

#[test]
fn a_file_with_any_byte_of_its_header_changed_never_panics() {
    let dir = TempDir::new();
    let path = dir.file("changed.gguf");
    let whole = File::tiny(Q8_0, 1).bytes();
    let mut random = Random(12);
    for _ in 0..300 {
        let mut bytes = whole.clone();
        let at = random.below(1800) as usize;
        bytes[at] ^= 1 << random.below(8);
        fs::write(&path, &bytes).unwrap();
        // Some changes are harmless (a name nobody reads); none may end the process.
        let _ = Engine::<Cpu>::open(&path, &options(), &mut |_, _| ());
    }
}

#[test]
fn a_file_that_was_replaced_is_told_from_the_one_before() {
    let dir = TempDir::new();
    let path = dir.file("model.gguf");
    let print = |seed: u64| {
        File::tiny(Q8_0, seed).write(&path);
        Engine::<Cpu>::open(&path, &options(), &mut |_, _| ()).unwrap().info().fingerprint
    };
    let first = print(1);
    assert_eq!(print(1), first, "the same weights");
    assert_ne!(print(2), first, "other weights under the same header");
    let options = EngineOptions { header_digest: Some([1; 32]), ..options() };
    let error = Engine::<Cpu>::open(&path, &options, &mut |_, _| ()).unwrap_err();
    assert_says(&error.to_string(), &["model.gguf", "not the file", "restart the supervisor"]);
}

#[test]
fn what_is_no_file_is_said_so() {
    let dir = TempDir::new();
    assert_says(&refusal(&dir.file("")), &["directory"]);
    assert_says(&refusal(&dir.file("absent.gguf")), &["absent.gguf", "cannot be found"]);
    let text = dir.file("text.gguf");
    fs::write(&text, "this is no weight file, but it is long enough").unwrap();
    assert_says(&refusal(&text), &["not a GGUF file"]);
}

#[test]
fn another_architecture_is_named_with_what_is_supported() {
    let mut file = File::tiny(F32, 1);
    file.set("general.architecture", Value::Str("mamba"));
    assert_says(&refusal_of(&file), &["`mamba`", "`llama`"]);
    file.unset("general.architecture");
    assert_says(&refusal_of(&file), &["general.architecture", "missing"]);
    let mut experts = File::tiny(F32, 1);
    experts.set("llama.expert_count", Value::U32(8));
    assert_says(&refusal_of(&experts), &["mixture of 8 experts"]);
}

#[test]
fn hyperparameters_out_of_bounds_are_named() {
    for (key, value, words) in [
        ("llama.block_count", Value::U32(0), &["block_count", "between 1 and"][..]),
        ("llama.block_count", Value::U32(100_000), &["block_count", "100000"]),
        ("llama.block_count", Value::Str("two"), &["block_count"]),
        ("llama.embedding_length", Value::U32(1 << 30), &["embedding_length"]),
        ("llama.attention.head_count", Value::U32(3), &["head_count", "multiple"]),
        ("llama.attention.head_count_kv", Value::U32(0), &["head_count_kv"]),
        ("llama.attention.key_length", Value::U32(24), &["24"]),
        ("llama.attention.value_length", Value::U32(32), &["value_length"]),
        ("llama.rope.dimension_count", Value::U32(7), &["dimension_count", "even"]),
        ("llama.rope.dimension_count", Value::U32(64), &["dimension_count", "64"]),
        ("llama.rope.freq_base", Value::F32(f32::NAN), &["freq_base"]),
        ("llama.rope.scaling.type", Value::Str("yarn"), &["`yarn`", "linear"]),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(-1.0), &["epsilon"]),
        ("llama.context_length", Value::U32(u32::MAX), &["context_length"]),
    ] {
        let mut file = File::tiny(F32, 1);
        file.set(key, value);
        assert_says(&refusal_of(&file), words);
    }
    let mut file = File::tiny(F32, 1);
    file.unset("llama.context_length");
    assert_says(&refusal_of(&file), &["context_length", "missing"]);
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let mut missing = File::tiny(F32, 1);
    missing.tensors.retain(|tensor| tensor.name != "blk.1.ffn_up.weight");
    assert_says(&refusal_of(&missing), &["blk.1.ffn_up.weight", "missing"]);

    let mut turned = File::tiny(F32, 1);
    turned.tensor("blk.0.attn_k.weight").dims.reverse();
    assert_says(&refusal_of(&turned), &["blk.0.attn_k.weight", "[32, 64]", "[64, 32]"]);

    let mut unknown = File::tiny(F32, 1);
    // Blocks of this type have another size; the bytes are more than enough.
    unknown.tensor("blk.0.attn_k.weight").type_id = I8;
    assert_says(&refusal_of(&unknown), &["blk.0.attn_k.weight", "I8", "Q8_0"]);

    let mut foreign = File::tiny(F32, 1);
    foreign.tensor("blk.0.attn_k.weight").type_id = 99;
    assert_says(&refusal_of(&foreign), &["blk.0.attn_k.weight", "99"]);

    let mut extra = File::tiny(F32, 1);
    let mut norm = extra.tensor("blk.0.attn_norm.weight").clone();
    "blk.0.attn_q_norm.weight".clone_into(&mut norm.name);
    extra.tensors.push(norm);
    assert_says(&refusal_of(&extra), &["blk.0.attn_q_norm.weight", "`llama`"]);
}

#[test]
fn a_split_file_loads_from_any_part_and_computes_the_same() {
    let dir = TempDir::new();
    let file = File::tiny(Q8_0, 2);
    let whole = dir.file("whole.gguf");
    file.write(&whole);
    let tokens = Random(1).tokens(20);
    let mut engine = open(&whole, &options());
    let expected = rows_in_chunks(&mut engine, SlotIndex(0), &tokens, &[20]);
    for path in file.write_split(&dir, 3) {
        let mut engine = open(&path, &options());
        assert_eq!(rows_in_chunks(&mut engine, SlotIndex(0), &tokens, &[20]), expected);
    }
}

#[test]
fn a_split_file_that_is_not_whole_is_refused() {
    let dir = TempDir::new();
    let file = File::tiny(Q8_0, 2);
    let paths = file.write_split(&dir, 3);
    fs::remove_file(&paths[1]).unwrap();
    assert_says(&refusal(&paths[0]), &["m-00002-of-00003.gguf", "part 2 of 3 is missing"]);
    assert_says(&refusal(&paths[2]), &["part 2 of 3 is missing"]);
    fs::copy(&paths[2], &paths[1]).unwrap();
    assert_says(&refusal(&paths[0]), &["m-00002-of-00003.gguf", "part 2 of 3", "split.no"]);
    let renamed = dir.file("renamed.gguf");
    fs::rename(&paths[0], &renamed).unwrap();
    assert_says(&refusal(&renamed), &["one of 3 parts", "-00001-of-00003.gguf"]);
}

#[test]
fn loading_tells_how_far_it_is_and_ends_at_the_total() {
    let dir = TempDir::new();
    let path = dir.file("tiny.gguf");
    File::tiny(F32, 1).write(&path);
    let mut reports = Vec::new();
    let engine = Engine::<Cpu>::open(&path, &options(), &mut |done, total| {
        reports.push((done, total));
    })
    .unwrap();
    assert!(reports.is_sorted());
    let (done, total) = *reports.last().unwrap();
    assert_eq!(done, total);
    assert!(total >= engine.info().weight_bytes);
    assert_eq!(engine.info().name, "tiny");
}

#[test]
fn options_out_of_bounds_are_named() {
    let dir = TempDir::new();
    let path = dir.file("tiny.gguf");
    File::tiny(F32, 1).write(&path);
    let mut bad = options();
    bad.slots = 0;
    let error = Engine::<Cpu>::open(&path, &bad, &mut |_, _| ()).unwrap_err();
    assert!(matches!(error, EngineError::Option { option: "slots", .. }), "{error}");
    let mut bad = options();
    bad.instruction_set = Some("mmx".to_owned());
    let error = Engine::<Cpu>::open(&path, &bad, &mut |_, _| ()).unwrap_err();
    assert_says(&error.to_string(), &["`mmx`", "portable"]);
}

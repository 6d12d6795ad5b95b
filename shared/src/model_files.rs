//! What both processes agree on about the files of a model: which architectures there are, and how
//! the parts of a split one are named and numbered. Pure; each process reads files in its own way.

use std::path::{Path, PathBuf};

use crate::gguf::{GgufError, Metadata};
use crate::limits::GGUF_PARTS_MAX;

/// Values of `general.architecture` that this build computes.
pub const ARCHITECTURES: [&str; 2] = ["llama", "qwen4exp"];

/// Sizes that no model can do without, and the most of each, by architecture-less key.
pub const SIZES: [(&str, u32); 4] = [
    ("block_count", 1024),
    ("embedding_length", 1 << 16),
    ("attention.head_count", 1024),
    ("context_length", crate::limits::CONTEXT_LEN_MAX),
];

/// The same, of dense models and of mixtures of experts.
const DENSE_SIZES: [(&str, u32); 1] = [("feed_forward_length", 1 << 20)];
const EXPERT_SIZES: [(&str, u32); 3] = [
    ("expert_count", 1 << 14),
    ("expert_used_count", 1 << 14),
    ("expert_feed_forward_length", 1 << 20),
];

/// Whether models of an architecture are mixtures of experts.
fn has_experts(arch: &str) -> bool {
    arch == "qwen4exp"
}

/// Checks that this build computes models of this kind, and gives the architecture.
///
/// # Errors
///
/// What it is, and what this build computes.
pub fn check_architecture(metadata: &Metadata) -> Result<&str, String> {
    let known = ARCHITECTURES.map(|name| format!("`{name}`")).join(", ");
    let Some(arch) = metadata.str("general.architecture").map_err(in_words)? else {
        return Err("metadata key `general.architecture` is missing".to_owned());
    };
    if !ARCHITECTURES.contains(&arch) {
        return Err(format!(
            "its architecture is `{arch}`; this build computes {known} models only"
        ));
    }
    match metadata.u32(&format!("{arch}.expert_count")).map_err(in_words)? {
        None | Some(0) => Ok(arch),
        Some(_) if has_experts(arch) => Ok(arch),
        Some(count) => Err(format!(
            "it is a mixture of {count} experts; this build computes dense `{arch}` models only"
        )),
    }
}

/// Checks that the sizes are there and within bounds; how they fit together is the worker's to say.
///
/// # Errors
///
/// The first that cannot be.
pub fn check_sizes(metadata: &Metadata, arch: &str) -> Result<(), String> {
    let own: &[(&str, u32)] = if has_experts(arch) { &EXPERT_SIZES } else { &DENSE_SIZES };
    for &(key, most) in SIZES.iter().chain(own) {
        let key = format!("{arch}.{key}");
        match metadata.u32(&key).map_err(in_words)? {
            Some(value) if (1..=most).contains(&value) => {}
            Some(value) => {
                return Err(format!(
                    "metadata key `{key}` is {value}, but must be between 1 and {most}"
                ));
            }
            None => return Err(format!("metadata key `{key}` is missing")),
        }
    }
    Ok(())
}

/// The files of a model of which `given` is one: itself, or all parts in order.
///
/// # Errors
///
/// There cannot be so many parts, or the name says nothing of where the others are.
pub fn part_paths(given: &Path, metadata: &Metadata) -> Result<Vec<PathBuf>, String> {
    let count = number(metadata, "split.count")?.unwrap_or(1);
    if count <= 1 {
        return Ok(vec![given.to_owned()]);
    }
    if count > GGUF_PARTS_MAX {
        return Err(format!(
            "it says it has {count} parts, more than the limit of {GGUF_PARTS_MAX}"
        ));
    }
    let Some(stem) = split_stem(given, count) else {
        return Err(format!(
            "it is one of {count} parts, so its name must end in `-00001-of-{count:05}.gguf` \
             (with its own number) for the others to be found"
        ));
    };
    let name = |number| format!("{stem}-{number:05}-of-{count:05}.gguf");
    Ok((1..=count).map(|number| given.with_file_name(name(number))).collect())
}

/// Checks that part `index` (from 0) of `count` says that it is.
///
/// # Errors
///
/// What it says instead.
pub fn check_part(metadata: &Metadata, index: usize, count: usize) -> Result<(), String> {
    let own_index = number(metadata, "split.no")?;
    let own_count = number(metadata, "split.count")?;
    if own_index == Some(index) && own_count == Some(count) {
        return Ok(());
    }
    let shown = |value: Option<usize>| value.map_or("none".to_owned(), |v| v.to_string());
    Err(format!(
        "its name says part {} of {count}, its metadata say `split.no` {} (from 0) of \
         `split.count` {}",
        index + 1,
        shown(own_index),
        shown(own_count)
    ))
}

/// Checks that the parts hold as many tensors as the first announces.
///
/// # Errors
///
/// Both numbers.
pub fn check_tensor_count(first: &Metadata, present: usize) -> Result<(), String> {
    match number(first, "split.tensors.count")? {
        Some(announced) if announced != present => Err(format!(
            "`split.tensors.count` is {announced}, but the parts hold {present} tensors"
        )),
        _ => Ok(()),
    }
}

fn number(metadata: &Metadata, key: &str) -> Result<Option<usize>, String> {
    Ok(metadata.u32(key).map_err(in_words)?.map(|value| value as usize))
}

/// The name of a split file up to `-00001-of-0000N.gguf`.
fn split_stem(path: &Path, count: usize) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let rest = name.strip_suffix(&format!("-of-{count:05}.gguf"))?;
    let (stem, number) = rest.rsplit_once('-')?;
    let is_number = number.len() == 5 && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| stem.to_owned())
}

fn in_words(error: GgufError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::split_stem;

    #[test]
    fn the_stem_of_a_split_name_is_found_only_in_a_split_name() {
        let stem = |name: &str, count| split_stem(Path::new(name), count);
        assert_eq!(stem("a/m-00002-of-00003.gguf", 3).as_deref(), Some("m"));
        assert_eq!(stem("a/m-q8-00001-of-00012.gguf", 12).as_deref(), Some("m-q8"));
        assert_eq!(stem("a/m-00002-of-00003.gguf", 4), None);
        assert_eq!(stem("a/m-2-of-00003.gguf", 3), None);
        assert_eq!(stem("a/m.gguf", 3), None);
    }
}

//! Finding and reading the files of a model: one, or the parts of a split one.
//!
//! Headers are read with ordinary reads, never through a mapping: a file that shrinks meanwhile is
//! an error here and not a signal.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use shared::gguf::{self, Gguf, GgufError};
use shared::limits::{GGUF_HEADER_BYTES_MAX, GGUF_PARTS_MAX};

use crate::engine::EngineError;

/// First read of a header; most headers of small models fit, larger ones take a few steps.
const HEADER_BYTES_FIRST: usize = 4 << 20;

/// One file with its header.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) file_len: u64,
    pub(super) header: Gguf,
}

pub(super) fn cannot_open(path: &Path, what: impl Into<String>) -> EngineError {
    EngineError::Open { path: path.to_owned(), what: what.into() }
}

pub(super) fn invalid(path: &Path, what: impl Into<String>) -> EngineError {
    EngineError::Invalid { path: path.to_owned(), what: what.into() }
}

/// Opens the file, and if it is part of a split one, all others in order.
pub(super) fn open_all(path: &Path) -> Result<Vec<Part>, EngineError> {
    let given = open_part(path)?;
    let count = split_number(&given, "split.count")?.unwrap_or(1);
    if count <= 1 {
        return Ok(vec![given]);
    }
    if count > GGUF_PARTS_MAX {
        let what = format!("it says it has {count} parts, more than the limit of {GGUF_PARTS_MAX}");
        return Err(invalid(path, what));
    }
    let Some(stem) = split_stem(path, count) else {
        return Err(invalid(
            path,
            format!(
                "it is one of {count} parts, so its name must end in \
                 `-00001-of-{count:05}.gguf` (with its own number) for the others to be found"
            ),
        ));
    };
    let mut parts = Vec::with_capacity(count);
    for number in 0..count {
        parts.push(open_numbered(path, &stem, number, count)?);
    }
    check_tensor_count(&parts)?;
    Ok(parts)
}

/// Part `number` (from 0) of `count`.
fn open_numbered(
    given: &Path,
    stem: &str,
    number: usize,
    count: usize,
) -> Result<Part, EngineError> {
    let name = format!("{stem}-{:05}-of-{count:05}.gguf", number + 1);
    let path = given.with_file_name(name);
    if !path.exists() {
        let what = format!("part {} of {count} is missing", number + 1);
        return Err(cannot_open(&path, what));
    }
    let part = open_part(&path)?;
    let own_number = split_number(&part, "split.no")?;
    let own_count = split_number(&part, "split.count")?;
    if own_number != Some(number) || own_count != Some(count) {
        let shown = |value: Option<usize>| value.map_or("none".to_owned(), |v| v.to_string());
        return Err(invalid(
            &path,
            format!(
                "its name says part {} of {count}, its metadata say `split.no` {} (from 0) of \
                 `split.count` {}",
                number + 1,
                shown(own_number),
                shown(own_count)
            ),
        ));
    }
    Ok(part)
}

fn check_tensor_count(parts: &[Part]) -> Result<(), EngineError> {
    let first = &parts[0];
    let present: usize = parts.iter().map(|part| part.header.tensors.len()).sum();
    match split_number(first, "split.tensors.count")? {
        Some(announced) if announced != present => Err(invalid(
            &first.path,
            format!("`split.tensors.count` is {announced}, but the parts hold {present} tensors"),
        )),
        _ => Ok(()),
    }
}

fn split_number(part: &Part, key: &str) -> Result<Option<usize>, EngineError> {
    let value = part.header.metadata.u32(key).map_err(|error| refused(&part.path, &error))?;
    Ok(value.map(|value| value as usize))
}

/// The name of a split file up to `-00001-of-0000N.gguf`.
fn split_stem(path: &Path, count: usize) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let rest = name.strip_suffix(&format!("-of-{count:05}.gguf"))?;
    let (stem, number) = rest.rsplit_once('-')?;
    let is_number = number.len() == 5 && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| stem.to_owned())
}

fn open_part(path: &Path) -> Result<Part, EngineError> {
    // Asked before opening: opening a pipe would wait for its other end.
    let metadata = std::fs::metadata(path)
        .map_err(|error| cannot_open(path, format!("cannot be found: {error}")))?;
    if metadata.is_dir() {
        return Err(cannot_open(path, "is a directory; give the path of a GGUF file in it"));
    }
    if !metadata.is_file() {
        return Err(cannot_open(path, "is not a regular file"));
    }
    let mut file = File::open(path)
        .map_err(|error| cannot_open(path, format!("cannot be opened for reading: {error}")))?;
    let file_len = file
        .metadata()
        .map_err(|error| cannot_open(path, format!("its length cannot be read: {error}")))?
        .len();
    let header = read_header(path, &mut file, file_len)?;
    Ok(Part { path: path.to_owned(), file, file_len, header })
}

/// Reads as much of the file as its header needs.
fn read_header(path: &Path, file: &mut File, file_len: u64) -> Result<Gguf, EngineError> {
    let file_bytes = usize::try_from(file_len).unwrap_or(usize::MAX);
    let most = file_bytes.min(GGUF_HEADER_BYTES_MAX);
    let mut bytes = Vec::new();
    let mut wanted = HEADER_BYTES_FIRST.min(most);
    loop {
        let missing = wanted - bytes.len();
        bytes.try_reserve_exact(missing).map_err(|_| EngineError::OutOfMemory {
            what: "the header of the weight file".to_owned(),
            bytes: missing as u64,
        })?;
        read_more(path, file, missing, &mut bytes)?;
        match gguf::parse(&bytes, file_len) {
            Err(GgufError::Incomplete { .. }) if wanted < most => {
                wanted = wanted.saturating_mul(4).min(most);
            }
            Err(error) => return Err(refused(path, &error)),
            Ok(header) => return Ok(header),
        }
    }
}

fn read_more(
    path: &Path,
    file: &mut File,
    count: usize,
    bytes: &mut Vec<u8>,
) -> Result<(), EngineError> {
    let read = file.take(count as u64).read_to_end(bytes);
    match read {
        Ok(read) if read == count => Ok(()),
        Ok(_) => Err(cannot_open(path, "became shorter while its header was read")),
        Err(error) if error.kind() == ErrorKind::IsADirectory => {
            Err(cannot_open(path, "is a directory"))
        }
        Err(error) => Err(cannot_open(path, format!("its header cannot be read: {error}"))),
    }
}

pub(super) fn refused(path: &Path, error: &GgufError) -> EngineError {
    invalid(path, error.to_string())
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

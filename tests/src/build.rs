//! Building the programs of the workspace, for `cargo demo` and `cargo verify`.

use std::path::PathBuf;
use std::process::Command;

use crate::programs;

/// A cargo command in the workspace. The toolchain and the target folder are this program's own.
#[must_use]
pub fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(programs::workspace());
    command
}

/// Builds the programs in release and gives their folder. Cargo shows its progress on stderr.
///
/// # Errors
///
/// If they cannot be built; the compiler has then said why.
pub fn release_programs() -> Result<PathBuf, String> {
    let status = cargo()
        .args(["build", "--release", "--bins"])
        .args(["--package", "strata-supervisor", "--package", "strata-worker"])
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    if status.success() {
        return Ok(programs::target().join("release"));
    }
    Err("the programs cannot be built; the compiler's messages stand above".to_owned())
}

//! Python with pip, found or made in a folder of our own. Nothing is installed into the system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::programs;

const ADVICE: &str = "Install Python 3 with pip (Debian, Ubuntu: `apt install python3-pip`; \
    Fedora: `dnf install python3-pip`; Arch: `pacman -S python-pip`) and try again.";

/// A Python 3 that has pip.
#[derive(Debug, Clone)]
pub struct Python {
    program: PathBuf,
}

impl Python {
    /// The system's Python if it has pip, else one of our own in the target folder.
    ///
    /// # Errors
    ///
    /// Says what to install.
    pub fn find() -> Result<Self, String> {
        let system = Self { program: PathBuf::from("python3") };
        if !system.runs(&["-c", "import sys; sys.exit(sys.version_info < (3, 8))"]) {
            return Err(format!("`python3` (3.8 or newer) does not run. {ADVICE}"));
        }
        if system.runs(&["-m", "pip", "--version"]) {
            return Ok(system);
        }
        let folder = programs::target().join("strata-python");
        let own = Self { program: folder.join("bin/python3") };
        if own.runs(&["-m", "pip", "--version"]) {
            return Ok(own);
        }
        eprintln!("python3 has no pip; making an environment in {}", folder.display());
        let made = system.command().args(["-m", "venv", "--clear"]).arg(&folder).output();
        match made {
            Ok(output) if output.status.success() => Ok(own),
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stdout);
                let why = why.trim().lines().next().unwrap_or("no reason given").to_owned();
                Err(format!("python3 has neither pip nor venv ({why}). {ADVICE}"))
            }
            Err(error) => Err(format!("python3: {error}. {ADVICE}")),
        }
    }

    /// A command that runs this Python.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.stdin(Stdio::null());
        command
    }

    fn runs(&self, arguments: &[&str]) -> bool {
        let status =
            self.command().args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Runs pip; what it prints goes to stderr, so that a person sees its progress.
    ///
    /// # Errors
    ///
    /// If it fails; pip has then said why.
    pub fn pip(&self, arguments: &[&str]) -> Result<(), String> {
        let status = self
            .command()
            .args(["-m", "pip", "--disable-pip-version-check", "--no-input"])
            .args(arguments)
            .env("PIP_ROOT_USER_ACTION", "ignore")
            .stdout(std::io::stderr())
            .status()
            .map_err(|error| format!("pip: {error}"))?;
        if status.success() {
            return Ok(());
        }
        Err(format!(
            "`pip {}` failed ({status}). It needs the network, or a mirror named in pip's own \
             configuration.",
            arguments.join(" ")
        ))
    }

    /// Installs pinned requirements into a folder of their own below the target folder, once, and
    /// gives the folder for `PYTHONPATH`.
    ///
    /// # Errors
    ///
    /// As [`Python::pip`].
    pub fn packages(&self, name: &str, requirements: &[&str]) -> Result<PathBuf, String> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = programs::target().join("strata-python-packages").join(name);
        let stamp = folder.join("strata-installed");
        let wanted = requirements.join("\n");
        if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
            return Ok(folder);
        }
        // Half an installation is worth nothing.
        let _ = fs::remove_dir_all(&folder);
        let target = folder.to_str().ok_or("the target folder's name is not UTF-8")?;
        // What the system has installed besides does not matter in a folder of our own.
        let mut arguments = vec!["install", "--quiet", "--no-warn-conflicts", "--target", target];
        arguments.extend(requirements);
        self.pip(&arguments)?;
        fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
        Ok(folder)
    }

    /// Unpacks a zip file.
    ///
    /// # Errors
    ///
    /// If it cannot be unpacked.
    pub fn unzip(&self, archive: &Path, folder: &Path) -> Result<(), String> {
        let output = self.command().args(["-m", "zipfile", "-e"]).arg(archive).arg(folder).output();
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(format!("unpacking {}: {why}", archive.display()))
            }
            Err(error) => Err(format!("unpacking {}: {error}", archive.display())),
        }
    }
}

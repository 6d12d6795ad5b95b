//! Other processes, as `/proc` shows them, and folders that go away.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A folder that is removed with its content when this is dropped.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// A new, empty folder.
    ///
    /// # Panics
    ///
    /// If the system's folder for temporary files is not writable.
    #[must_use]
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("strata-test-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // A folder of that name can only be left from a killed run with the same process id.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("the folder for temporary files is writable");
        Self(path)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for TempDir {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Nothing can be done about what cannot be removed, and a test may be panicking.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process as it was when looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its parent's id.
    pub parent: u32,
    /// `R`, `S`, `T`, `Z` and so on, as in proc(5).
    pub state: char,
    /// Name of the program, at most 15 bytes.
    pub name: String,
}

/// The process of that id, if there is one.
#[must_use]
pub fn find(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold any character, so it is cut at the last one.
    let (head, rest) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Process { pid, parent, state, name: name.to_owned() })
}

/// Whether the process runs: it is there and no zombie.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    find(pid).is_some_and(|process| process.state != 'Z')
}

/// All children of a process, zombies included.
#[must_use]
pub fn children(parent: u32) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(find)
        .filter(|process| process.parent == parent)
        .collect()
}

/// How many descriptors a process has open; 0 if it is gone.
#[must_use]
pub fn open_descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Resident memory of a process that is no file's, in bytes; 0 if it is gone.
#[must_use]
pub fn anonymous_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Sends a signal; a process that is gone already is no error.
///
/// # Panics
///
/// If the signal may not be sent.
pub fn signal(pid: u32, signal: Signal) {
    let target = Pid::from_raw(i32::try_from(pid).expect("process ids are positive i32"));
    match kill(target, signal) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
        Err(error) => panic!("{signal} to process {pid}: {error}"),
    }
}

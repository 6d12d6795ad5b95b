//! Everything that can keep the supervisor from serving, in one order, before it accepts anybody.
//!
//! Each step that fails has its own exit code, so that a unit file and a person can tell a typo
//! from a missing disk.

use std::fs::{DirBuilder, File, OpenOptions};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use shared::config::Config;

use crate::api::ModelCard;
use crate::api::connection::bind_control;
use crate::exit::{Exit, StartError};
use crate::model_file::{self, ModelFile};
use crate::settings::{control_socket, environment};
use crate::text::Text;
use crate::worker::process;

/// Who holds this file's lock owns the state directory.
const LOCK_FILE: &str = "lock";

/// What a supervisor needs to run. Dropping it gives the state directory free.
#[derive(Debug)]
pub struct Ready {
    /// The configuration, checked.
    pub config: Config,
    /// What the API says about the model.
    pub model: ModelCard,
    /// Text to token ids and back.
    pub text: Arc<Text>,
    /// Digest of the weight file's header.
    pub header_digest: [u8; 32],
    /// The API's listener, bound but not accepted from.
    pub listener: TcpListener,
    /// The control socket's.
    pub control: UnixListener,
    /// Where the control socket is.
    pub control_path: PathBuf,
    _lock: Flock<File>,
}

impl Ready {
    /// Takes every step.
    ///
    /// # Errors
    ///
    /// The first that fails, with its exit code.
    pub fn new(config: Config) -> Result<Self, StartError> {
        raise_descriptor_limit();
        let (model, text, header_digest) = open_model(&config)?;
        find_worker(&process::program(&config))?;
        let lock = lock_state_dir(&config.state_dir)?;
        let control_path = control_socket(&environment(), &config.state_dir);
        let control = bind_control(&control_path).map_err(|error| {
            let place = control_path.display();
            StartError::new(Exit::StateDir, format!("the control socket {place}: {error}"))
        })?;
        let listener = listen(&config)?;
        Ok(Self {
            config,
            model,
            text,
            header_digest,
            listener,
            control,
            control_path,
            _lock: lock,
        })
    }
}

/// The usual soft limit of 1024 is a relic of `select`; connections and readers need more.
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::info!(%error, "the limit of open descriptors stays as it is");
    }
}

/// What the API says about the model, its text, and the digest of its header.
fn open_model(config: &Config) -> Result<(ModelCard, Arc<Text>, [u8; 32]), StartError> {
    let file = model_file::open(&config.model)
        .map_err(|error| StartError::new(Exit::Model, error.to_string()))?;
    let in_file = |error: &dyn std::fmt::Display| {
        let message = format!("the weight file {}: {error}", config.model.display());
        StartError::new(Exit::Model, message)
    };
    let text = Text::from_gguf(&file.gguf).map_err(|error| in_file(&error))?;
    let mut card = describe(&file).map_err(|error| in_file(&error))?;
    card.name = if config.model_name.is_empty() {
        name_of(&config.model)
    } else {
        config.model_name.clone()
    };
    card.n_vocab = text.vocab_size() as u64;
    if u64::from(config.context) > card.n_ctx_train {
        tracing::warn!(
            context = config.context,
            model = card.n_ctx_train,
            "`context` is longer than the model's own, which is taken instead"
        );
    }
    Ok((card, Arc::new(text), file.gguf.header_digest))
}

fn describe(file: &ModelFile) -> Result<ModelCard, shared::gguf::GgufError> {
    let metadata = &file.gguf.metadata;
    let arch = metadata.str("general.architecture")?.unwrap_or_default().to_owned();
    let number = |key: &str| metadata.u64(&format!("{arch}.{key}"));
    Ok(ModelCard {
        n_ctx_train: number("context_length")?.unwrap_or(0),
        n_embd: number("embedding_length")?.unwrap_or(0),
        n_params: file.gguf.tensors.iter().map(shared::gguf::TensorInfo::elements).sum(),
        size_bytes: file.file_len,
        arch,
        ..ModelCard::default()
    })
}

/// The file's name without its ending and without the number of a split file's part.
fn name_of(model: &Path) -> String {
    let stem = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = stem
        .rsplit_once("-of-")
        .filter(|(_, count)| is_number(count))
        .and_then(|(rest, _)| rest.rsplit_once('-'))
        .filter(|(name, part)| !name.is_empty() && is_number(part))
        .map(|(name, _)| name.to_owned());
    name.unwrap_or(stem)
}

/// Checks that the worker can be started at all; a bare name is looked for in `PATH`.
fn find_worker(program: &Path) -> Result<(), StartError> {
    let is_program = |path: &Path| {
        std::fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let is_found = if program.components().count() == 1 && !program.is_absolute() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| is_program(&dir.join(program)))
    } else {
        is_program(program)
    };
    if is_found {
        return Ok(());
    }
    let message = format!(
        "the worker's program {} is missing or cannot be executed; name it with \
         `--worker-program FILE`",
        program.display()
    );
    Err(StartError::new(Exit::WorkerProgram, message))
}

/// Makes the state directory if need be, and takes it for this process alone.
fn lock_state_dir(dir: &Path) -> Result<Flock<File>, StartError> {
    let fail = |what: String| {
        StartError::new(Exit::StateDir, format!("the state directory {}: {what}", dir.display()))
    };
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(dir).map_err(|error| fail(error.to_string()))?;
    let mut options = OpenOptions::new();
    let file = options
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(dir.join(LOCK_FILE))
        .map_err(|error| fail(format!("not writable: {error}")))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        nix::errno::Errno::EWOULDBLOCK => fail(
            "held by another strata-supervisor; stop it, or name another with `--state-dir`"
                .to_owned(),
        ),
        other => fail(format!("cannot be locked: {other}")),
    })
}

fn listen(config: &Config) -> Result<TcpListener, StartError> {
    let bind = || {
        let listener = TcpListener::bind(config.listen)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    bind().map_err(|error: std::io::Error| {
        StartError::new(Exit::Listen, format!("cannot listen on {}: {error}", config.listen))
    })
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{find_worker, lock_state_dir, name_of};
    use crate::exit::Exit;

    #[test]
    fn one_supervisor_holds_a_state_directory() {
        let dir: PathBuf = std::env::temp_dir().join(format!("strata-lock-{}", std::process::id()));
        let first = lock_state_dir(&dir).unwrap();
        let refused = lock_state_dir(&dir).unwrap_err();
        assert_eq!(refused.exit, Exit::StateDir);
        assert!(refused.message.contains("held by another"), "{}", refused.message);
        drop(first);
        drop(lock_state_dir(&dir).unwrap());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_worker_is_a_program_here_or_in_the_path() {
        find_worker(Path::new("sh")).unwrap();
        find_worker(Path::new("/bin/sh")).unwrap();
        for missing in ["/no/such/worker", "no-such-worker", "/etc/passwd", "/etc"] {
            assert_eq!(find_worker(Path::new(missing)).unwrap_err().exit, Exit::WorkerProgram);
        }
    }

    #[test]
    fn models_are_named_after_their_file() {
        assert_eq!(name_of(Path::new("/m/Smol.Q4_1.gguf")), "Smol.Q4_1");
        assert_eq!(name_of(Path::new("Big-IQ3_S-00001-of-00003.gguf")), "Big-IQ3_S");
        assert_eq!(name_of(Path::new("Big-00003-of-00003.gguf")), "Big");
        assert_eq!(name_of(Path::new("one-of-a-kind.gguf")), "one-of-a-kind");
    }
}

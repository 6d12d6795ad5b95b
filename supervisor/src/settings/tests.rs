use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{Inputs, Settings, Source, default_state_dir};
use crate::exit::Exit;

/// A configuration file that is removed when the test ends.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("strata-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn flag(key: &'static str, value: &str) -> (&'static str, Vec<String>) {
    (key, vec![value.to_owned()])
}

#[test]
fn later_layers_win_and_each_value_keeps_its_source() {
    let file = File::new("layers", "slots = 2\nthreads = 3\n\nqueue_limit = 5 # waits\n");
    let settings = Settings::load(&Inputs {
        file: Some(file.0.clone()),
        flags: vec![flag("queue_limit", "7")],
        environment: environment(&[("STRATA_THREADS", "9"), ("STRATA_MODEL", ""), ("HOME", "/h")]),
    })
    .unwrap();
    assert_eq!((settings.config.slots, settings.config.threads), (2, 9));
    assert_eq!(settings.config.queue_limit, 7);
    assert_eq!(*settings.source("slots"), Source::File { path: file.0.clone(), line: 1 });
    assert_eq!(*settings.source("threads"), Source::Environment("STRATA_THREADS".to_owned()));
    assert_eq!(*settings.source("queue_limit"), Source::Flag("--queue-limit".to_owned()));
    assert_eq!(*settings.source("model"), Source::Default);
    assert_eq!(settings.config.state_dir, PathBuf::from("/h/.local/state/strata"));
}

#[test]
fn every_error_names_place_key_value_and_what_is_allowed() {
    let in_file = |name: &str, text: &str| {
        let file = File::new(name, text);
        let inputs = Inputs { file: Some(file.0.clone()), ..Inputs::default() };
        let error = Settings::load(&inputs).and_then(|settings| settings.validate()).unwrap_err();
        assert_eq!(error.exit, Exit::Configuration);
        assert!(!error.message.contains('\n'), "{}", error.message);
        error.message
    };
    let message = in_file("unknown", "slots = 2\n\nslotz = 3\n");
    assert!(message.contains("-unknown.toml:3: unknown key `slotz`"), "{message}");
    let message = in_file("type", "# two\nslots = \"two\"\n");
    assert!(message.contains("-type.toml:2: `slots` is \"two\", but must be a whole"), "{message}");
    let message = in_file("range", "model = \"m\"\nslots = 0\n");
    assert!(message.contains("-range.toml:2: `slots` is 0, but must be between"), "{message}");
    let message = in_file("syntax", "slots = 1\nthreads = = 2\n");
    assert!(message.contains("-syntax.toml:2: "), "{message}");
    let message = in_file("secret", "api_keys = [12345678]\n");
    assert!(!message.contains("12345678"), "{message}");

    let flags = Inputs { flags: vec![flag("listen", "nowhere")], ..Inputs::default() };
    let message = Settings::load(&flags).unwrap_err().message;
    assert!(
        message.starts_with("flag --listen: `listen` is \"nowhere\", but must be"),
        "{message}"
    );
    let variables =
        Inputs { environment: environment(&[("STRATA_SLOTS", "-1")]), ..Inputs::default() };
    let message = Settings::load(&variables).unwrap_err().message;
    assert!(message.starts_with("environment STRATA_SLOTS: `slots` is -1, but"), "{message}");
    let missing = Inputs { file: Some("/nonexistent/strata.toml".into()), ..Inputs::default() };
    assert!(Settings::load(&missing).unwrap_err().message.contains("cannot be read"));
}

#[test]
fn the_printed_configuration_is_a_configuration_and_hides_keys() {
    let settings = Settings::load(&Inputs {
        flags: vec![flag("api_keys", "very-secret-key"), flag("model", "m.gguf")],
        ..Inputs::default()
    })
    .unwrap();
    let printed = settings.print();
    assert!(!printed.contains("very-secret-key"));
    assert!(printed.contains("# flag --model"));
    let file = File::new("printed", &printed);
    let again =
        Settings::load(&Inputs { file: Some(file.0.clone()), ..Inputs::default() }).unwrap();
    assert_eq!(again.config.model, settings.config.model);
}

#[test]
fn the_state_directory_follows_systemd_then_the_user() {
    let cases: [(&[(&str, &str)], &str); 4] = [
        (&[("STATE_DIRECTORY", "/var/lib/strata:/x"), ("HOME", "/h")], "/var/lib/strata"),
        (&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")], "/s/strata"),
        (&[("HOME", "/h")], "/h/.local/state/strata"),
        (&[], "/.local/state/strata"),
    ];
    for (pairs, expected) in cases {
        assert_eq!(default_state_dir(&environment(pairs)), PathBuf::from(expected));
    }
}

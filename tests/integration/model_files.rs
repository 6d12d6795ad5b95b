//! Weight files that are damaged or hostile: a clear refusal, and no process dies of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use strata_tests::process::TempDir;
use strata_tests::programs;
use strata_tests::random::Random;
use strata_tests::server::{Setup, question};
use strata_tests::tiny_model::{Builder, Tensor, Value};
use strata_tests::wait::wait_until;

/// The supervisor's exit for a weight file it cannot use.
const SUPERVISOR_MODEL: i32 = 4;

/// The worker's.
const WORKER_MODEL: i32 = 11;

/// Places at which a whole file is cut.
const CUTS: usize = 200;

fn run(program: &str, arguments: &[&str], model: &Path) -> (Option<i32>, String) {
    let output = Command::new(programs::find(program).unwrap())
        .args(arguments)
        .arg("--model")
        .arg(model)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.signal(), None, "{program}: {said}");
    assert!(!said.contains("panicked"), "{program}: {said}");
    (output.status.code(), said)
}

/// Both processes must refuse the file, for a reason they tell.
fn assert_refused(name: &str, path: &Path) -> String {
    let (code, said) = load_in_worker(path);
    assert_eq!(code, Some(WORKER_MODEL), "{name}: worker: {said}");
    assert!(!said.trim().is_empty(), "{name}: the worker says nothing");
    said
}

fn load_in_worker(path: &Path) -> (Option<i32>, String) {
    run("strata-worker", &["bench", "-p", "4", "-n", "1", "-t", "1", "-r", "1"], path)
}

fn load_in_supervisor(dir: &Path, path: &Path) -> (Option<i32>, String) {
    let state = dir.join("state");
    let state = state.to_str().unwrap();
    let worker = programs::find("fake-worker").unwrap();
    let worker = worker.to_str().unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--state-dir", state, "--worker-program", worker];
    run("strata-supervisor", &arguments, path)
}

#[test]
fn the_whole_file_is_accepted() {
    let dir = TempDir::new();
    let path = dir.path().join("whole.gguf");
    fs::write(&path, Builder::tiny().build()).unwrap();
    let (code, said) = load_in_worker(&path);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_file_cut_anywhere_is_refused_by_both() {
    let dir = TempDir::new();
    let mut random = Random::announced("truncated weight files");
    let bytes = Builder::tiny().build();
    for number in 0..CUTS {
        // Half of the cuts inside the header, where most of the parsing is.
        let end = if number % 2 == 0 { bytes.len() } else { bytes.len().min(8192) };
        let length = random.below(end);
        let path = dir.path().join("cut.gguf");
        fs::write(&path, &bytes[..length]).unwrap();
        assert_refused(&format!("cut at {length}"), &path);
        // The supervisor has no model to serve either; each tenth shows it, it starts slower.
        if number % 10 == 0 {
            let (code, said) = load_in_supervisor(dir.path(), &path);
            assert_eq!(code, Some(SUPERVISOR_MODEL), "cut at {length}: {said}");
        }
    }
}

fn hostile_files() -> Vec<(&'static str, Vec<u8>)> {
    let tiny = Builder::tiny;
    let with_tensors = |change: fn(&mut Vec<Tensor>)| {
        let mut builder = tiny();
        change(&mut builder.tensors);
        builder.build()
    };
    let mut files = vec![
        ("zero-length key", tiny().with("", Value::U32(1)).build()),
        ("alignment 0", tiny().with("general.alignment", Value::U32(0)).build()),
        ("alignment 3", tiny().with("general.alignment", Value::U32(3)).build()),
        ("alignment 2^30", tiny().with("general.alignment", Value::U32(1 << 30)).build()),
        ("unknown arch", tiny().with("general.architecture", Value::Str("zen".into())).build()),
        ("no arch", tiny().with("general.architecture", Value::U32(7)).build()),
        ("heads 0", tiny().with("llama.attention.head_count", Value::U32(0)).build()),
        ("layers 2^31", tiny().with("llama.block_count", Value::U32(1 << 31)).build()),
        ("width 7", tiny().with("llama.embedding_length", Value::U32(7)).build()),
        ("epsilon NaN", {
            tiny().with("llama.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN)).build()
        }),
        ("duplicate tensor", with_tensors(|tensors| tensors.push(tensors[0].clone()))),
        ("overlapping tensors", with_tensors(|tensors| tensors[1].offset = Some(0))),
        ("offset beyond the file", with_tensors(|tensors| tensors[1].offset = Some(1 << 40))),
        ("unknown type", with_tensors(|tensors| tensors[0].tensor_type = 999)),
        ("no dimension", with_tensors(|tensors| tensors[0].dims.clear())),
        ("dimension 0", with_tensors(|tensors| tensors[0].dims[0] = 0)),
        ("dimensions overflow", with_tensors(|tensors| tensors[0].dims = vec![u64::MAX; 4])),
        ("missing tensor", with_tensors(|tensors| drop(tensors.remove(3)))),
        ("wrong shape", with_tensors(|tensors| tensors[1].dims[0] = 64)),
        ("big-endian", [b"GGUF".as_slice(), &3_u32.to_be_bytes(), &[0; 64]].concat()),
        ("not GGUF", b"PK\x03\x04 this is something else entirely, and long enough".to_vec()),
        ("empty", Vec::new()),
    ];
    let mut huge_key = tiny().build();
    // The first key's length stands after magic, version and the two counts.
    huge_key[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    files.push(("huge key length", huge_key));
    let mut counts = tiny().build();
    counts[8..24].fill(0xff);
    files.push(("huge counts", counts));
    files
}

#[test]
fn hostile_headers_are_refused_with_a_reason() {
    let dir = TempDir::new();
    for (name, bytes) in hostile_files() {
        let path = dir.path().join("hostile.gguf");
        fs::write(&path, bytes).unwrap();
        assert_refused(name, &path);
        // Shapes and values are the worker's to check; what the metadata say, both do.
        let is_of_tensors = ["width 7", "epsilon NaN", "missing tensor", "wrong shape"];
        if !is_of_tensors.contains(&name) {
            let (code, said) = load_in_supervisor(dir.path(), &path);
            assert_eq!(code, Some(SUPERVISOR_MODEL), "{name}: {said}");
        }
    }
}

#[test]
fn a_split_model_with_a_wrong_part_is_refused_by_both() {
    let dir = TempDir::new();
    let path = |number: u32| dir.path().join(format!("model-{number:05}-of-00002.gguf"));
    let part = |index, count| {
        let builder = Builder::tiny().with("split.no", Value::U32(index));
        builder.with("split.count", Value::U32(count))
    };
    let mut second = part(1, 2);
    second.tensors.clear();
    let refused_by_both = |name: &str, word: &str| {
        for given in [path(1), path(2)].iter().filter(|given| given.exists()) {
            let worker = assert_refused(name, given);
            let (code, said) = load_in_supervisor(dir.path(), given);
            assert_eq!(code, Some(SUPERVISOR_MODEL), "{name}: {said}");
            assert!(said.contains(word) && worker.contains(word), "{name}: {said}{worker}");
        }
    };
    fs::write(path(1), part(0, 2).build()).unwrap();
    refused_by_both("missing second part", "model-00002-of-00002.gguf");
    fs::write(path(2), part(0, 2).build()).unwrap();
    refused_by_both("wrong number", "split.no");
    fs::write(path(2), b"GGUF").unwrap();
    refused_by_both("damaged second part", "model-00002-of-00002.gguf");
    // Whole, each part finds the others.
    fs::write(path(2), second.build()).unwrap();
    for given in [path(1), path(2)] {
        let (code, said) = load_in_worker(&given);
        assert_eq!(code, Some(0), "{said}");
        let server = Setup::real(Some(&given)).serve();
        server.finish();
    }
}

#[test]
fn places_that_are_no_weight_file_are_refused_by_both() {
    let dir = TempDir::new();
    let unreadable = dir.path().join("secret.gguf");
    fs::write(&unreadable, Builder::tiny().build()).unwrap();
    fs::set_permissions(&unreadable, fs::Permissions::from_mode(0o000)).unwrap();
    let is_root = fs::read(&unreadable).is_ok();
    if is_root {
        eprintln!("SKIPPED: an unreadable weight file: root can read everything");
    }
    for (name, path) in [
        ("directory", dir.path()),
        ("missing", Path::new("no/such/file.gguf")),
        ("device", Path::new("/dev/zero")),
        ("unreadable", unreadable.as_path()),
    ] {
        if name == "unreadable" && is_root {
            continue;
        }
        assert_refused(name, path);
        let (code, said) = load_in_supervisor(dir.path(), path);
        assert_eq!(code, Some(SUPERVISOR_MODEL), "{name}: {said}");
    }
}

#[test]
fn a_file_cut_after_it_was_mapped_kills_no_supervisor() {
    let dir = TempDir::new();
    let path = dir.path().join("victim.gguf");
    let bytes = Builder::tiny().build();
    fs::write(&path, &bytes).unwrap();
    let setup = Setup::real(Some(&path)).flag("--failures-max", "3");
    let mut server = setup.flag("--restart-delay-max-s", "0.5").serve();
    for allowed in ["worker lost", "epitaph", "worker stderr", "degraded"] {
        server.allow(allowed);
    }
    let ask = || server.client().post("/v1/chat/completions", &question("before", 5)).status();
    assert_eq!(ask(), 200);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    // Whatever is asked now gets an answer, and an honest one.
    let status = thread::scope(|scope| scope.spawn(ask).join().unwrap());
    assert!(matches!(status, 500 | 503), "status {status}");
    wait_until("an honest state", Duration::from_secs(30), || {
        server.status()["state"] == "degraded"
    });
    assert_eq!(server.client().get("/livez").status(), 200);
    assert_eq!(server.client().get("/readyz").status(), 503);
    let reasons = server.status()["recycles"]["by_reason"].clone();
    assert!(reasons["weights_unreadable"].is_u64(), "{reasons}");
    // Put back, it serves again, by itself.
    fs::write(&path, &bytes).unwrap();
    let is_back = || server.client().get("/readyz").status() == 200;
    wait_until("service again", Duration::from_secs(30), is_back);
    assert_eq!(ask(), 200);
    server.finish();
}

#[test]
fn a_cause_is_the_operators_and_clients_see_no_path_of_it() {
    let dir = TempDir::new();
    let path = dir.path().join("private.gguf");
    let bytes = Builder::tiny();
    // Only the worker looks at the shapes of tensors.
    fs::write(&path, Builder { tensors: bytes.tensors[..4].to_vec(), ..bytes }.build()).unwrap();
    let mut server = Setup::real(Some(&path)).flag("--failures-max", "2").start();
    for allowed in ["worker lost", "epitaph", "held", "degraded"] {
        server.allow(allowed);
    }
    wait_until("an honest state", Duration::from_secs(30), || {
        server.status()["state"] == "held" || server.status()["state"] == "degraded"
    });
    let told = String::from_utf8(server.ctl(&["status"]).stdout).unwrap();
    assert!(told.contains("private.gguf"), "the operator sees where: {told}");
    let refused = server.client().post("/v1/chat/completions", &question("a", 1));
    for response in [refused, server.client().get("/readyz"), server.client().get("/health")] {
        assert_eq!(response.status(), 503);
        let said = response.text();
        assert!(said.contains("code 11 (model)") && !said.contains("private.gguf"), "{said}");
    }
    server.finish();
}

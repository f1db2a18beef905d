//! Runs the programs of `tests/conformance`: they are told where Weir is, and say what they saw, one JSON object a line.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::installation::{Installation, MODEL, repository};

/// Runs a Python script of `tests/conformance`, with the clients that `make test` installs.
pub fn run_python(script: &str, installation: &Installation, key: &str) -> Vec<Value> {
    let python = repository().join(".cache/venv-tests/bin/python");
    assert!(python.is_file(), "the test clients are missing: run `make test`");
    run(&python, &repository().join("tests/conformance").join(script), installation, key)
}

/// Runs a Node script of `tests/conformance/node`, with the clients that `deploy/setup/test-node.sh` installs.
pub fn run_node(script: &str, installation: &Installation, key: &str) -> Vec<Value> {
    // Node looks for packages beside the script.
    let beside = repository().join(".cache/node-tests").join(script);
    let source = repository().join("tests/conformance/node").join(script);
    std::fs::copy(source, &beside).expect("the test clients are missing: run deploy/setup/test-node.sh");
    run(Path::new("node"), &beside, installation, key)
}

fn run(program: &Path, script: &Path, installation: &Installation, key: &str) -> Vec<Value> {
    let output = Command::new(program)
        .arg(script)
        .env("WEIR_BASE_URL", &installation.env["WEIR_BASE_URL"])
        .env("WEIR_API_KEY", key)
        .env("WEIR_MODEL", MODEL)
        .output()
        .unwrap();
    assert!(output.status.success(), "{script:?}: {}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

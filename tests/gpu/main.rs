//! `make gpu`'s script does what it says: without a device, and (every shape tiny) on the driver that runs kernels on the CPU.
#![allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use weir_tests::installation::repository;

const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// What `make gpu` puts together, but for the tests of the kernels, which run by themselves.
fn bundle(folder: &Path) {
    let root = repository();
    let built = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples/gpu_bench");
    let hint = "build it first: cargo build --release -p weir-engine --features cuda --example gpu_bench";
    assert!(built.exists(), "{hint}");
    symlink(built, folder.join("gpu_bench")).unwrap();
    for (from, name) in [
        ("tests/gpu", "run.sh"),
        ("tests/gpu", "compare.py"),
        ("data-plane/engine/tests/fixtures", "golden.json"),
        (".cache/models", MODEL),
    ] {
        symlink(root.join(from).join(name), folder.join(name)).unwrap();
    }
}

/// Runs the script with this in `LD_PRELOAD`, and gives its steps as (outcome, text).
fn run(folder: &Path, preload: &str) -> (Output, BTreeMap<String, (String, String)>) {
    let mut command = Command::new("sh");
    command.arg(folder.join("run.sh")).arg("--tiny").env("LD_PRELOAD", preload);
    // Transformers, where some machine has it, would take longer than all else.
    let output = command.env("PYTHON", python_without_packages(folder)).output().unwrap();
    let steps = fs::read_to_string(folder.join("results/steps.jsonl")).unwrap();
    let step = |line: &str| {
        let step: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| step[key].as_str().unwrap().to_owned();
        (text("step"), (text("outcome"), text("text")))
    };
    (output, steps.lines().map(step).collect())
}

fn python_without_packages(folder: &Path) -> PathBuf {
    program(folder.join("python"), "exec python3 -I -S \"$@\"")
}

fn program(path: PathBuf, script: &str) -> PathBuf {
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn without_a_device_every_step_says_why_it_is_not_run() {
    let folder = tempfile::tempdir().unwrap();
    bundle(folder.path());
    let (output, steps) = run(folder.path(), "");
    let printed = String::from_utf8_lossy(&output.stdout);
    if steps["probe"].0 == "PASS" {
        // This machine has a device.
        return;
    }
    assert!(!output.status.success(), "{printed}");
    assert_eq!(steps["probe"].0, "FAIL");
    for (name, (outcome, text)) in steps.iter().filter(|(name, _)| *name != "probe") {
        assert_eq!((outcome.as_str(), text.as_str()), ("SKIP", "there is no device to run it on"), "{name}");
    }
    assert!(fs::read_to_string(folder.path().join("results/results.md")).unwrap().contains("| FAIL |"));
}

#[test]
fn a_step_that_fails_is_named_and_the_others_run() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["run.sh", "compare.py"] {
        symlink(repository().join("tests/gpu").join(name), folder.path().join(name)).unwrap();
    }
    let bench = r#"case $1 in
        graphs) echo 'other "answers"'; exit 1 ;;
        products) echo '{"what":"a product","value":2.0,"unit":"TFLOP/s","bound":4.0,"share":0.500,"microseconds":3.0}' ;;
        tokens) kill -9 $$ ;;
        *) echo done ;;
    esac"#;
    program(folder.path().join("gpu_bench"), bench);
    let numerics =
        r#"[ "$WEIR_CUDA $*" = 'real --skip sanitizers:: --test-threads=1' ] && echo 'on the real driver'"#;
    program(folder.path().join("numerics"), numerics);
    let (output, steps) = run(folder.path(), "");
    assert_eq!(output.status.code(), Some(1));
    let step = |name: &str| (steps[name].0.as_str(), steps[name].1.as_str());
    assert_eq!(step("probe"), ("PASS", "done"));
    assert_eq!(step("numerics"), ("PASS", "on the real driver"));
    assert_eq!(step("graphs"), ("FAIL", "other \"answers\""));
    assert_eq!(step("answers"), ("SKIP", "SmolLM2-135M-Instruct.Q4_1.gguf is not in this folder"));
    assert_eq!(step("golden"), ("SKIP", "there are no answers to compare"));
    assert_eq!(step("products"), ("PASS", "1 measurements"));
    assert_eq!(step("tokens_bf16").0, "FAIL");
    let summary = fs::read_to_string(folder.path().join("results/results.md")).unwrap();
    assert!(summary.contains("| a product | 2.0 TFLOP/s | 4.0 | 0.500 | 3.0 |"), "{summary}");
}

#[test]
fn every_step_runs_on_the_stand_in() {
    let folder = tempfile::tempdir().unwrap();
    bundle(folder.path());
    let (output, steps) = run(folder.path(), &weir_stand_in::preload());
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}");
    let outcome = |name: &str| steps[name].0.as_str();
    for name in
        ["probe", "graphs", "answers", "golden", "attention", "products", "tokens_bf16", "tokens_q4_0"]
    {
        assert_eq!(outcome(name), "PASS", "{name}: {}", steps[name].1);
    }
    assert_eq!(steps["transformers"], ("SKIP".into(), "the Python module torch is not installed".into()));
    for line in fs::read_to_string(folder.path().join("results/measurements.jsonl")).unwrap().lines() {
        let measurement: Value = serde_json::from_str(line).unwrap();
        for key in ["value", "bound", "share", "microseconds"] {
            assert!(measurement[key].as_f64().is_some_and(|number| number >= 0.0), "{line}");
        }
    }
    let summary = fs::read_to_string(folder.path().join("results/results.md")).unwrap();
    let rows = summary.lines().filter(|line| line.starts_with("| product, Q4_0, ")).count();
    assert_eq!(rows, 3, "{summary}");
    assert!(summary.contains(" rows, cuBLASLt |"), "{summary}");
}

#[test]
fn answers_that_differ_are_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    bundle(folder.path());
    let golden: Value =
        serde_json::from_slice(&fs::read(folder.path().join("golden.json")).unwrap()).unwrap();
    let prompt = &golden["prompts"][0];
    let best = &prompt["top2"][0];
    let logit = |i: usize| best[i].as_f64().unwrap();
    let margin = logit(2) - logit(3);
    let compare = |token: &Value, margin: f64| {
        let top = serde_json::json!([[[best[0], -0.5], [best[1], -0.5 - margin]]]);
        let answer = serde_json::json!({"name": prompt["name"], "tokens": [token], "top": top});
        let path = folder.path().join("answers.json");
        fs::write(&path, serde_json::json!([answer]).to_string()).unwrap();
        let mut command = Command::new("python3");
        command.arg(folder.path().join("compare.py")).arg("golden").arg(path);
        command.arg(folder.path().join("golden.json")).output().unwrap().status.code()
    };
    assert_eq!(compare(&best[0], margin), Some(0));
    assert_eq!(compare(&best[0], margin + 0.2), Some(1), "another distance");
    assert_eq!(compare(&best[1], margin), Some(1), "another token");
}

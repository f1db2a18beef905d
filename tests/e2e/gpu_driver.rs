//! A worker on a machine whose GPU driver is missing or broken says so in words, and ends.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use weir_tests::installation::binary;

/// Starts a worker on these libraries; it ends before it needs anything else.
fn worker(folder: &Path, device: &str) -> Output {
    fs::write(folder.join("secret"), "0123456789abcdef0123456789abcdef\n").unwrap();
    let config = format!(
        "[worker]\nlisten = \"127.0.0.1:0\"\ndata_dir = {:?}\ninternal_secret_file = {:?}\n",
        folder.join("data"),
        folder.join("secret")
    );
    fs::write(folder.join("worker.toml"), config).unwrap();
    let mut command = Command::new(binary());
    command.args(["worker", "--device", device, "--config"]).arg(folder.join("worker.toml"));
    command.env("LD_LIBRARY_PATH", folder).output().unwrap()
}

/// The library under each name that it is asked for by.
fn library(folder: &Path, make: impl Fn(&Path)) {
    for name in ["libcuda.so", "libcuda.so.1"] {
        make(&folder.join(name));
    }
}

fn says(output: &Output, text: &str) {
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("worker.device is cuda") && said.contains(text), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_broken_driver_gives_a_message_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    library(folder.path(), |path| fs::write(path, "this is no library").unwrap());
    says(&worker(folder.path(), "cuda"), "libcuda.so.1");
}

#[test]
fn a_driver_that_lacks_a_function_gives_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("driver.c");
    fs::write(&source, "int cuInit(unsigned flags) { return (int)flags; }\n").unwrap();
    library(folder.path(), |path| {
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(path).arg(&source).status();
        assert!(built.unwrap().success());
    });
    says(&worker(folder.path(), "cuda"), "cuDriverGetVersion");
}

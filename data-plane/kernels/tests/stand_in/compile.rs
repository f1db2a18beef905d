//! Builds the stand-in's shared objects with g++ when a test first needs them, and keeps them by content.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Where the sources of the stand-in are.
pub(crate) fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where the kernels' sources are.
pub(crate) fn kernels() -> PathBuf {
    sources().join("../../src/cuda/kernels")
}

/// The kernels' sources, sorted.
pub(crate) fn kernel_files() -> Vec<PathBuf> {
    files(&kernels(), "cu")
}

/// Builds `name` from C++ or CUDA sources and returns its path. What was built before from the same is used again.
pub(crate) fn shared_object(name: &str, sources: &[PathBuf], link: &[&str]) -> PathBuf {
    let folder = folder();
    fs::create_dir_all(&folder).expect("a folder under target/");
    let lock = File::create(folder.join("lock")).expect("a lock under target/");
    lock.lock().expect("the lock of the stand-in's builds");
    let common = headers_hash();
    let objects = objects(sources, &folder, common);
    let built = folder.join(format!("{:016x}", hash_of(&(&objects, link)))).join(name);
    if !built.exists() {
        fs::create_dir_all(built.parent().expect("a folder")).expect("a folder under target/");
        let mut command = Command::new("g++");
        command.arg("-shared").args(&objects).args(link);
        if crate::is_sanitized() {
            command.arg(SANITIZERS);
        }
        finish(command, &built);
    }
    built
}

/// Beside the build's profiles: `target/stand_in`.
fn folder() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let target = test.ancestors().nth(3).expect("target/<profile>/deps/<test>");
    target.join("stand_in")
}

/// The sources' objects, in their order, built by as many threads as there are cores.
fn objects(sources: &[PathBuf], folder: &Path, common: u64) -> Vec<PathBuf> {
    let next = AtomicUsize::new(0);
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                    object(source, folder, common);
                }
            });
        }
    });
    // Built by now.
    sources.iter().map(|source| object(source, folder, common)).collect()
}

fn object(source: &Path, folder: &Path, common: u64) -> PathBuf {
    let content = fs::read(source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let stem = source.file_stem().expect("a file").to_string_lossy();
    let object = folder.join(format!("{stem}-{:016x}.o", hash_of(&(common, content, source))));
    if !object.exists() {
        let mut command = Command::new("g++");
        command.args(flags()).arg("-I").arg(sources().join("..")).arg("-I").arg(kernels());
        command.args(["-x", "c++", "-c"]).arg(source);
        finish(command, &object);
    }
    object
}

const SANITIZERS: &str = "-fsanitize=address,undefined";

fn flags() -> Vec<&'static str> {
    let mut flags = vec![
        "-std=c++20",
        "-ffp-contract=off",
        "-fno-strict-aliasing",
        "-fno-gnu-unique",
        "-fvisibility=hidden",
        "-fPIC",
        "-Wall",
        "-Wextra",
        "-Wno-unknown-pragmas",
        "-Wno-attributes",
        "-DWEIR_STAND_IN",
    ];
    if crate::is_sanitized() {
        flags.extend(["-O1", "-g1", SANITIZERS, "-fno-sanitize-recover=all"]);
    } else {
        flags.extend(["-O2", "-ftree-vectorize"]);
    }
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("f16c") {
        flags.extend(["-mavx2", "-mf16c", "-mfma"]);
    }
    flags
}

/// Runs the compiler into a file of its own, which takes its place when it is whole.
fn finish(mut command: Command, result: &Path) {
    let unfinished = result.with_extension("unfinished");
    // A sanitizer that watches this process is not to watch the compiler.
    command.arg("-o").arg(&unfinished).env_remove("LD_PRELOAD");
    let output = command.output().expect("g++ is needed for tests of the CUDA backend");
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    fs::rename(&unfinished, result).expect("a file under target/");
}

/// Of everything that a source may include, and of how it is compiled.
fn headers_hash() -> u64 {
    let mut all = files(sources(), "h");
    all.extend(files(&kernels(), "cuh"));
    let contents: Vec<Vec<u8>> = all.iter().map(|path| fs::read(path).expect("a header")).collect();
    hash_of(&(contents, flags()))
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files.sort();
    files
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

//! Puts the CUDA kernels into the crate: compiled ones if `make kernels` made some, and the source as one file.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Where `make kernels` leaves the machine code, from the workspace's root.
const FATBIN: &str = ".build/cuda/kernels.fatbin";
/// And what it was made of.
const COMPILED_SOURCES: &str = ".build/cuda/sources";
const SOURCES: &str = "src/cuda/kernels";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SOURCES}");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    let variable = |name: &str| env::var_os(name).map(PathBuf::from).ok_or(io::ErrorKind::NotFound);
    let (out, crate_dir) = (variable("OUT_DIR")?, variable("CARGO_MANIFEST_DIR")?);
    let workspace = crate_dir.join("../..");
    let fatbin = workspace.join(FATBIN);
    println!("cargo::rerun-if-changed={}", fatbin.display());
    let is_current =
        fs::read(workspace.join(COMPILED_SOURCES)).ok() == Some(all_sources(&crate_dir.join(SOURCES))?);
    let expression = match fatbin.canonicalize() {
        Ok(path) if is_current => format!("Some(include_bytes!({path:?}))"),
        Ok(_) => {
            println!(
                "cargo::warning=the compiled CUDA kernels are of other sources and left out: run make kernels"
            );
            "None".to_owned()
        }
        Err(_) => "None".to_owned(),
    };
    fs::write(out.join("fatbin.rs"), expression)?;
    fs::write(out.join("kernels.cu"), one_source(&crate_dir.join(SOURCES))?)
}

/// Every source, those of kernels before those that they include, as `compile.sh` puts them together.
fn all_sources(folder: &Path) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    for extension in ["cu", "cuh"] {
        for file in files(folder, extension)? {
            all.extend(fs::read(file)?);
        }
    }
    Ok(all)
}

/// Sorted.
fn files(folder: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files.sort();
    Ok(files)
}

/// Every `.cu` file one after another, with what they include from their own folder put in once.
fn one_source(folder: &Path) -> io::Result<String> {
    let (mut source, mut included) = (String::new(), Vec::new());
    for file in files(folder, "cu")? {
        append(&file, &mut source, &mut included)?;
    }
    Ok(source)
}

fn append(file: &Path, source: &mut String, included: &mut Vec<PathBuf>) -> io::Result<()> {
    for line in fs::read_to_string(file)?.lines() {
        let own = line.trim().strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        let path = own.map(|name| file.with_file_name(name)).filter(|path| path.exists());
        match path {
            Some(path) if included.contains(&path) => {}
            Some(path) => {
                included.push(path.clone());
                append(&path, source, included)?;
            }
            None if line.trim() == "#pragma once" => {}
            None => {
                source.push_str(line);
                source.push('\n');
            }
        }
    }
    Ok(())
}

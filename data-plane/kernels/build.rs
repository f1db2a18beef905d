//! Puts the CUDA kernels into the crate: compiled ones if `make kernels` made some, and the source as one file.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Where `make kernels` leaves the machine code, from the workspace's root.
const FATBIN: &str = ".build/cuda/kernels.fatbin";
const SOURCES: &str = "src/cuda/kernels";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SOURCES}");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    let variable = |name: &str| env::var_os(name).map(PathBuf::from).ok_or(io::ErrorKind::NotFound);
    let (out, crate_dir) = (variable("OUT_DIR")?, variable("CARGO_MANIFEST_DIR")?);
    let fatbin = crate_dir.join("../..").join(FATBIN);
    println!("cargo::rerun-if-changed={}", fatbin.display());
    let expression = match fatbin.canonicalize() {
        Ok(path) => format!("Some(include_bytes!({path:?}))"),
        Err(_) => "None".to_owned(),
    };
    fs::write(out.join("fatbin.rs"), expression)?;
    fs::write(out.join("kernels.cu"), one_source(&crate_dir.join(SOURCES))?)
}

/// Every `.cu` file one after another, with what they include from their own folder put in once.
fn one_source(folder: &Path) -> io::Result<String> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "cu"));
    files.sort();
    let (mut source, mut included) = (String::new(), Vec::new());
    for file in files {
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

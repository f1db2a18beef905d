//! The files of the repository, as git sees them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Path from the root, and text, of every file that git tracks or would track and that is UTF-8.
pub(crate) fn text_files() -> Vec<(PathBuf, String)> {
    let listing = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git lists the files");
    assert!(listing.status.success(), "git ls-files failed");
    let names = String::from_utf8(listing.stdout).unwrap();
    let read = |name: &str| Some((PathBuf::from(name), std::fs::read_to_string(root().join(name)).ok()?));
    let files: Vec<_> = names.lines().filter_map(read).collect();
    assert!(files.len() > 50, "only {} files found: is this the whole checkout?", files.len());
    files
}

/// The Rust sources among them, generated code left out (there is none under version control).
pub(crate) fn rust_files() -> Vec<(PathBuf, String)> {
    text_files()
        .into_iter()
        .filter(|(path, _)| path.extension().is_some_and(|ending| ending == "rs"))
        .collect()
}

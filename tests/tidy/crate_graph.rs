//! ARCHITECTURE.md's crate graph, exactly: no edge more, no edge less.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::tree::{root, rust_files};

/// Every crate of ours and what it may import of ours. Tests may import anything and are listed without edges.
const EDGES: &[(&str, &[&str])] = &[
    ("weir", &["weir-gateway", "weir-ledger", "weir-schemas", "weir-server", "weir-worker"]),
    ("weir-domain", &["weir-schemas"]),
    ("weir-engine", &["weir-kernels"]),
    ("weir-gateway", &["weir-metering", "weir-schemas", "weir-text"]),
    ("weir-kernels", &[]),
    ("weir-ledger", &["weir-schemas"]),
    ("weir-metering", &["weir-schemas"]),
    ("weir-schemas", &[]),
    ("weir-server", &["weir-domain", "weir-schemas"]),
    ("weir-text", &[]),
    ("weir-worker", &["weir-engine", "weir-metering", "weir-schemas", "weir-text"]),
];

/// Third-party crates that only the named crates of ours may use, because they carry a responsibility.
const WRAPPERS: &[(&str, &[&str])] = &[
    ("sqlx", &["weir-ledger", "weir-server", "weir-tests"]),
    ("memmap2", &["weir-kernels"]),
    ("cudarc", &["weir-kernels"]),
    ("rdkafka", &["weir-ledger", "weir-metering", "weir-schemas", "weir-server", "weir-tests"]),
];

/// Crates for tests and benchmarks, which may import anything; of ours only such import them.
const FOR_TESTS: &[&str] = &["weir-bench", "weir-stand-in", "weir-tests"];

struct Package {
    dir: String,
    /// Name and whether it is for tests or builds only.
    dependencies: Vec<(String, Option<String>)>,
}

fn packages() -> BTreeMap<String, Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let package = |package: &Value| {
        let manifest = text(&package["manifest_path"]);
        let prefix = format!("{}/", root().display());
        let dir = manifest.strip_prefix(&prefix).unwrap().trim_end_matches("Cargo.toml").to_owned();
        let dependency = |d: &Value| (text(&d["name"]), d["kind"].as_str().map(str::to_owned));
        let dependencies = package["dependencies"].as_array().unwrap().iter().map(dependency).collect();
        (text(&package["name"]), Package { dir, dependencies })
    };
    metadata["packages"].as_array().unwrap().iter().map(package).collect()
}

#[test]
fn edges_are_exactly_the_designs() {
    let actual: BTreeMap<String, BTreeSet<String>> = packages()
        .into_iter()
        .filter(|(name, _)| !FOR_TESTS.contains(&name.as_str()))
        .map(|(name, package)| {
            let ours =
                package.dependencies.into_iter().filter(|(d, kind)| d.starts_with("weir") && kind.is_none());
            (name, ours.map(|(d, _)| d).collect())
        })
        .collect();
    let expected: BTreeMap<String, BTreeSet<String>> = EDGES
        .iter()
        .map(|(name, edges)| ((*name).to_owned(), edges.iter().map(|&edge| edge.to_owned()).collect()))
        .collect();
    assert_eq!(actual, expected);
}

#[test]
fn nothing_of_ours_is_imported_for_tests_against_the_layers() {
    for (name, package) in packages().into_iter().filter(|(name, _)| !FOR_TESTS.contains(&name.as_str())) {
        let allowed = EDGES.iter().find(|(crate_name, _)| *crate_name == name).unwrap().1;
        let ours = package.dependencies.iter().filter(|(d, _)| d.starts_with("weir"));
        for (dependency, _) in ours.filter(|(d, kind)| kind.is_none() || !FOR_TESTS.contains(&d.as_str())) {
            // Itself: a crate's tests may want its features.
            let is_allowed = *dependency == name || allowed.contains(&dependency.as_str());
            assert!(is_allowed, "{name} imports {dependency} for its tests");
        }
    }
}

#[test]
fn responsibilities_stay_wrapped() {
    for (name, package) in packages() {
        for (wrapped, wrappers) in WRAPPERS {
            let uses = package.dependencies.iter().any(|(dependency, _)| dependency == wrapped);
            assert!(!uses || wrappers.contains(&name.as_str()), "{name} may not use {wrapped}");
        }
    }
}

#[test]
fn no_dependency_without_a_use() {
    let sources = rust_files();
    let packages = packages();
    let dirs: Vec<&String> =
        packages.values().map(|package| &package.dir).filter(|dir| !dir.is_empty()).collect();
    let mut unused = Vec::new();
    for (name, package) in &packages {
        let of_package = |path: &str| match package.dir.as_str() {
            "" => !dirs.iter().any(|dir| path.starts_with(dir.as_str())),
            dir => path.starts_with(dir),
        };
        let own: String = sources
            .iter()
            .filter(|(path, _)| of_package(path.to_str().unwrap()))
            .map(|(_, text)| text.as_str())
            .collect();
        for (dependency, _) in &package.dependencies {
            // tonic-prost is named by the code that tonic-prost-build generates.
            let used = own.contains(&dependency.replace('-', "_")) || dependency == "tonic-prost";
            if !used {
                unused.push(format!("{name}: {dependency}"));
            }
        }
    }
    assert_eq!(unused, Vec::<String>::new());
}

#[test]
fn every_crate_takes_the_workspaces_lints() {
    let parse =
        |path: &str| -> toml::Table { std::fs::read_to_string(root().join(path)).unwrap().parse().unwrap() };
    let workspace = parse("Cargo.toml")["workspace"]["lints"].clone();
    for (name, package) in packages() {
        let lints = parse(&format!("{}Cargo.toml", package.dir))["lints"].clone();
        if ["weir-kernels", "weir-stand-in"].contains(&name.as_str()) {
            // Repeats the table: everything the workspace asks, unsafe code alone excepted.
            for (tool, rules) in workspace.as_table().unwrap() {
                for (rule, level) in rules.as_table().unwrap() {
                    let own = lints.get(tool).and_then(|rules| rules.get(rule));
                    let stricter = own.and_then(|own| own.as_str()) == Some("deny");
                    assert!(rule == "unsafe_code" || own == Some(level) || stricter, "{name}: {tool}.{rule}");
                }
            }
        } else {
            assert_eq!(lints.get("workspace").and_then(toml::Value::as_bool), Some(true), "{name}");
        }
    }
}

//! The configuration file: it only composes the sections; each component defines and checks its own.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// The whole file. A process reads its own sections; the others may stand there too.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RawFile {
    pub(crate) log: crate::logging::RawConfig,
    pub(crate) ops: crate::ops::RawConfig,
    pub(crate) control_plane: weir_server::RawConfig,
    pub(crate) ledger: weir_ledger::RawConfig,
    pub(crate) gateway: weir_gateway::RawConfig,
    pub(crate) worker: weir_worker::RawConfig,
}

/// A file as read, and the keys in it that nothing knows.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) raw: RawFile,
    pub(crate) unknown_keys: Vec<String>,
}

/// Reads the file. With `check`, unknown keys are errors; a running process only warns of them, because a rollback
/// to an older release must be able to start.
pub(crate) fn load(path: &Path, check: bool) -> anyhow::Result<Loaded> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let loaded = parse(&text).with_context(|| format!("{} is not a usable configuration", path.display()))?;
    if check && !loaded.unknown_keys.is_empty() {
        bail!("{}: unknown keys: {}", path.display(), loaded.unknown_keys.join(", "));
    }
    Ok(loaded)
}

fn parse(text: &str) -> anyhow::Result<Loaded> {
    let raw: RawFile = toml::from_str(text)?;
    let given: Table = toml::from_str(text)?;
    // What was understood comes out again; what does not was not understood.
    let understood = Table::try_from(&raw)?;
    let mut unknown_keys = Vec::new();
    collect_unknown(&given, &understood, &PathBuf::new(), &mut unknown_keys);
    Ok(Loaded { raw, unknown_keys })
}

fn collect_unknown(given: &Table, understood: &Table, prefix: &Path, unknown: &mut Vec<String>) {
    for (key, value) in given {
        let path = prefix.join(key);
        match (value, understood.get(key)) {
            (Value::Table(given), Some(Value::Table(understood))) => {
                collect_unknown(given, understood, &path, unknown);
            }
            (_, Some(_)) => {}
            (_, None) => unknown.push(path.display().to_string().replace('/', ".")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every knob with its default. A new one is a visible difference in this file and must justify itself.
    #[test]
    fn the_full_default_configuration() {
        let actual = toml::to_string_pretty(&RawFile::default()).unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/default.toml");
        let expected = std::fs::read_to_string(path).unwrap_or_default();
        let staged = std::env::temp_dir().join("weir-default-config.toml");
        if actual != expected {
            std::fs::write(&staged, &actual).unwrap();
        }
        assert_eq!(actual, expected, "if this is meant, copy {} to {path}", staged.display());
    }

    #[test]
    fn unknown_keys_are_named_with_their_section() {
        let loaded = parse("nonsense = 1\n[worker]\npool = \"a\"\nseats = 3\n[nothing]\nx = 1\n").unwrap();
        assert_eq!(loaded.raw.worker.pool, "a");
        assert_eq!(loaded.unknown_keys, ["nonsense", "nothing", "worker.seats"]);
    }

    #[test]
    fn wrong_types_are_errors() {
        assert!(parse("[worker]\nmax_seats = \"many\"\n").is_err());
        assert!(parse("[worker").is_err());
    }

    #[test]
    fn the_example_configurations_have_no_unknown_keys() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/config");
        let mut names = Vec::new();
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            load(&path, true).unwrap();
            names.push(path.file_stem().unwrap().to_string_lossy().into_owned());
        }
        names.sort();
        assert_eq!(names, ["control-plane", "gateway", "ledger", "worker"]);
    }
}

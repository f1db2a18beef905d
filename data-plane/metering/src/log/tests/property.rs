//! Random operations, crashes and watermarks against a plain list of what was acknowledged.

use proptest::prelude::*;

use super::*;
use crate::log::OpenEntry;

#[derive(Debug, Clone)]
enum Step {
    Begin,
    Progress(usize),
    Close(usize, usize),
    Append(usize),
    Sync,
    Watermark(u8),
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Begin),
        4 => any::<usize>().prop_map(Step::Progress),
        4 => (any::<usize>(), 0..20_000usize).prop_map(|(which, bytes)| Step::Close(which, bytes)),
        2 => (0..20_000usize).prop_map(Step::Append),
        2 => Just(Step::Sync),
        1 => any::<u8>().prop_map(Step::Watermark),
        1 => Just(Step::Crash),
    ]
}

/// What the log has acknowledged.
#[derive(Default)]
struct Model {
    records: Vec<String>,
    open: Vec<(u64, u64)>,
    begun: u64,
    watermark: u64,
}

fn is_full(error: &LogError) -> bool {
    matches!(error, LogError::Full { .. })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_what_was_acknowledged_is_there(steps in prop::collection::vec(step(), 1..120)) {
        let dir = TempDir::new().unwrap();
        let (mut log, _) = open(dir.path());
        let mut model = Model::default();
        let mut entries: Vec<OpenEntry> = Vec::new();
        for step in steps {
            match step {
                Step::Begin => match log.begin(&model.begun) {
                    Ok(entry) => {
                        entries.push(entry);
                        model.open.push((model.begun, 0));
                        model.begun += 1;
                    }
                    Err(error) => prop_assert!(is_full(&error)),
                },
                Step::Progress(which) if !entries.is_empty() => {
                    let which = which % entries.len();
                    let next = model.open[which].1 + 1;
                    match entries[which].progress(&next) {
                        Ok(()) => model.open[which].1 = next,
                        Err(error) => prop_assert!(is_full(&error)),
                    }
                }
                Step::Close(which, bytes) if !entries.is_empty() => {
                    let which = which % entries.len();
                    let payload = "c".repeat(bytes);
                    let sequence = entries[which].close(TOPIC, "k", |_| &payload).unwrap();
                    model.records.push(format!("\"{payload}\""));
                    prop_assert_eq!(sequence, model.records.len() as u64);
                    entries.swap_remove(which);
                    model.open.swap_remove(which);
                }
                Step::Append(bytes) => {
                    let payload = "a".repeat(bytes);
                    match log.append(TOPIC, "k", |_| &payload) {
                        Ok(_) => model.records.push(format!("\"{payload}\"")),
                        Err(error) => prop_assert!(is_full(&error)),
                    }
                }
                Step::Sync => log.sync().unwrap(),
                Step::Watermark(part) => {
                    let target = model.records.len() as u64 * u64::from(part) / 255;
                    log.set_watermark(target);
                    model.watermark = model.watermark.max(target);
                }
                Step::Crash => {
                    drop((std::mem::take(&mut entries), log));
                    let (reopened, unclosed) = open(dir.path());
                    log = reopened;
                    let mut found: Vec<(u64, u64)> = Vec::new();
                    for entry in unclosed {
                        let progress = entry.progress().unwrap().unwrap_or(0);
                        found.push((entry.open().unwrap(), progress));
                        entries.push(entry.entry);
                    }
                    model.open.sort_unstable();
                    prop_assert_eq!(&found, &model.open);
                }
                Step::Progress(_) | Step::Close(..) => {}
            }
            let stats = log.stats();
            prop_assert!(stats.used_bytes <= stats.max_bytes, "{:?}", stats);
            prop_assert_eq!(stats.open_entries, entries.len());
        }
        let records = all(&log, model.watermark);
        let expected: Vec<(u64, &str)> = (1..).zip(model.records.iter().map(String::as_str)).skip(usize::try_from(model.watermark).unwrap()).collect();
        let actual: Vec<(u64, &str)> =
            records.iter().map(|record| (record.sequence, std::str::from_utf8(&record.payload).unwrap())).collect();
        prop_assert_eq!(actual, expected);
    }
}

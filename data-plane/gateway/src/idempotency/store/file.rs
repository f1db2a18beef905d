//! The file of a key: one line of JSON, then the answer's body as it was sent. The line says how long the body is and
//! its SHA-256, so that a torn file is recognised by its length at the start and by its content when it is read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Ends the name of a file that is being written.
pub(super) const UNFINISHED: &str = ".unfinished";
/// The line is some 500 bytes.
const MAX_LINE_BYTES: u64 = 16 << 10;

/// That a request ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Run {
    /// Hash of what was asked.
    pub(in super::super) request: String,
    /// Times it was run under this key, this one included.
    pub(in super::super) runs: u32,
    pub(in super::super) received_at: DateTime<Utc>,
    /// Filled in when it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer: Option<AnswerHead>,
}

/// An answer but for its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct AnswerHead {
    status: u16,
    headers: Vec<(String, String)>,
    body_bytes: u64,
    body_sha256: String,
}

/// An answer as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Answer {
    pub(in super::super) status: u16,
    pub(in super::super) headers: Vec<(String, String)>,
    pub(in super::super) body: Bytes,
}

impl Run {
    pub(in super::super) fn new(request: String, runs: u32, received_at: DateTime<Utc>) -> Self {
        Self { request, runs, received_at, answer: None }
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answer.is_some()
    }
}

/// Writes the file; gives what its line says and its length.
pub(super) fn write(path: &Path, run: Run, answer: Option<&Answer>) -> io::Result<(Run, u64)> {
    let head = |answer: &Answer| AnswerHead {
        status: answer.status,
        headers: answer.headers.clone(),
        body_bytes: answer.body.len() as u64,
        body_sha256: format!("{:x}", Sha256::digest(&answer.body)),
    };
    let run = Run { answer: answer.map(head), ..run };
    let mut line = serde_json::to_vec(&run)?;
    line.push(b'\n');
    let body = answer.map_or(&[][..], |answer| &answer.body);
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&line)?;
    file.write_all(body)?;
    file.flush()?;
    Ok((run, line.len() as u64 + body.len() as u64))
}

/// What the file's line says, and the file's length; `None` if it is torn.
pub(super) fn open(path: &Path) -> io::Result<Option<(Run, u64)>> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    Ok(line(&mut BufReader::new(file), bytes)?.map(|run| (run, bytes)))
}

/// The answer; `None` if it is torn or there is none.
pub(super) fn read(path: &Path) -> io::Result<Option<Answer>> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let mut file = BufReader::new(file);
    let Some(Run { answer: Some(head), .. }) = line(&mut file, bytes)? else { return Ok(None) };
    let mut body = Vec::new();
    file.take(head.body_bytes).read_to_end(&mut body)?;
    let is_intact = format!("{:x}", Sha256::digest(&body)) == head.body_sha256;
    Ok(is_intact.then(|| Answer { status: head.status, headers: head.headers, body: body.into() }))
}

fn line(file: &mut impl BufRead, bytes: u64) -> io::Result<Option<Run>> {
    let mut line = Vec::new();
    file.take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    let Ok(run) = serde_json::from_slice::<Run>(&line) else { return Ok(None) };
    let body_bytes = run.answer.as_ref().map_or(0, |answer| answer.body_bytes);
    let is_intact = line.ends_with(b"\n") && (line.len() as u64).checked_add(body_bytes) == Some(bytes);
    Ok(is_intact.then_some(run))
}

//! Real models' tokenizers against reference ids. The fixtures say how they were made.

#![allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes)]

mod answers;
mod fixtures;
mod grammar;
mod hostile;
mod reference;
mod scripts;
mod splits;
mod templates;
mod tools;

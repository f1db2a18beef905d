//! Bounds what one rendering may make.
//!
//! minijinja's fuel bounds the number of instructions, but one instruction can double a string, so a short template
//! could ask for a terabyte. Here every instruction that makes a value pays for its size from one budget, before the
//! value is made where it can be larger than what it is made of. `instrument` puts the payments into the program.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{Object, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::python_text::python_str;

/// Sixteen times the largest request body that a gateway takes, which leaves a usual template room to copy every
/// message several times.
pub(super) const MAX_WORK_BYTES: usize = 64 << 20;

/// What a value costs beside its text, in memory and in the time to visit it.
const VALUE_BYTES: usize = 32;

/// Filters that `instrument` inserts. A template that names one itself only pays for it.
pub(super) const PAY: &str = "weir.pay";
pub(super) const CONCAT: &str = "weir.concat";
pub(super) const PAY_ADD: &str = "weir.pay_add";
pub(super) const PAY_MUL: &str = "weir.pay_mul";
pub(super) const PAY_IN: &str = "weir.pay_in";

/// Marks the error that ends a rendering which made too much.
#[derive(Debug, thiserror::Error)]
#[error("made too much text")]
pub(super) struct TooLarge;

pub(super) fn too_large() -> Error {
    Error::new(ErrorKind::InvalidOperation, "made too much text").with_source(TooLarge)
}

#[derive(Debug, Default)]
struct Spent(AtomicUsize);

impl Object for Spent {}

/// Takes `bytes` from the rendering's budget.
pub(super) fn pay(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    let spent = state.get_or_set_temp_object("weir.spent", Spent::default);
    let before = spent.0.fetch_add(bytes.min(MAX_WORK_BYTES), Ordering::Relaxed);
    if before + bytes.min(MAX_WORK_BYTES) > MAX_WORK_BYTES { Err(too_large()) } else { Ok(()) }
}

/// Pays for a value as if it were written out, so that what it contains several times counts several times.
pub(super) fn pay_for(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    pay(state, written_bytes(value)?)
}

fn written_bytes(value: &Value) -> Result<usize, Error> {
    /// Counts up to the budget.
    struct Counter(usize);

    impl Write for Counter {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 += text.len() + VALUE_BYTES;
            if self.0 > MAX_WORK_BYTES { Err(fmt::Error) } else { Ok(()) }
        }

        /// Strings within lists are written by the character.
        fn write_char(&mut self, character: char) -> fmt::Result {
            self.0 += character.len_utf8();
            if self.0 > MAX_WORK_BYTES { Err(fmt::Error) } else { Ok(()) }
        }
    }

    match value.as_str() {
        Some(text) => Ok(text.len()),
        None if matches!(value.kind(), ValueKind::Bool | ValueKind::Number | ValueKind::Undefined) => {
            Ok(VALUE_BYTES)
        }
        None => {
            let mut counter = Counter(VALUE_BYTES);
            match write!(counter, "{}", python_str(value)) {
                Ok(()) => Ok(counter.0),
                Err(_) if counter.0 > MAX_WORK_BYTES => Err(too_large()),
                Err(_) => Err(Error::new(ErrorKind::InvalidOperation, "a value that cannot be written")),
            }
        }
    }
}

pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_filter(PAY, |state: &State<'_, '_>, value: Value| pay_for(state, &value).map(|()| value));
    environment.add_filter(CONCAT, concat);
    // These answer their operands, last first, for the instruction that follows.
    environment.add_filter(PAY_ADD, |state: &State<'_, '_>, left: Value, right: Value| {
        if left.kind() != ValueKind::Number {
            pay_for(state, &left)?;
            pay_for(state, &right)?;
        }
        Ok::<_, Error>(vec![right, left])
    });
    environment.add_filter(PAY_MUL, |state: &State<'_, '_>, left: Value, right: Value| {
        for (value, times) in [(&left, &right), (&right, &left)] {
            if let (false, Some(times)) = (value.kind() == ValueKind::Number, times.as_usize()) {
                pay(state, written_bytes(value)?.saturating_mul(times))?;
            }
        }
        Ok::<_, Error>(vec![right, left])
    });
    environment.add_filter(PAY_IN, |state: &State<'_, '_>, needle: Value, container: Value| {
        pay_for(state, &container)?;
        Ok::<_, Error>(vec![container, needle])
    });
}

/// `left ~ right`
fn concat(state: &State<'_, '_>, left: Value, right: Value) -> Result<String, Error> {
    let bytes = written_bytes(&left)? + written_bytes(&right)?;
    pay(state, bytes)?;
    let mut text = String::with_capacity(bytes);
    for value in [&left, &right] {
        write!(text, "{}", python_str(value)).map_err(|_| Error::from(ErrorKind::InvalidOperation))?;
    }
    Ok(text)
}

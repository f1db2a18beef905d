//! What people read: progress and answers on standard output, complaints on standard error. A closed pipe is not an
//! error: nobody is reading any more, and the work goes on.

use std::io::Write;

/// One line on standard output.
pub(crate) fn say(line: &str) {
    write(&mut std::io::stdout(), format_args!("{line}\n"));
}

/// A piece of a line on standard output, visible at once.
pub(crate) fn say_part(text: &str) {
    write(&mut std::io::stdout(), format_args!("{text}"));
}

/// One line on standard error.
pub(crate) fn complain(line: &str) {
    write(&mut std::io::stderr(), format_args!("weir: {line}\n"));
}

fn write(out: &mut impl Write, text: std::fmt::Arguments<'_>) {
    if out.write_fmt(text).and_then(|()| out.flush()).is_err() {
        tracing::debug!("nobody reads the output any more");
    }
}

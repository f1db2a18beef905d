//! Answers held to grammars, with tokens chosen at random, whatever a model would have liked to say.

mod agreement;
mod calls;
#[path = "../../examples/shared/draw.rs"]
mod draw;
mod exhaustion;
mod hostile;
#[path = "../../examples/shared/read.rs"]
mod read;
mod schemas;
mod small_vocabulary;
mod walk;

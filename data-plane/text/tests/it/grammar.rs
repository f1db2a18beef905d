//! Answers held to grammars, with tokens chosen at random, whatever a model would have liked to say.

mod calls;
#[path = "../../examples/shared/draw.rs"]
mod draw;
mod hostile;
mod schemas;
mod small_vocabulary;
mod walk;

//! Grammars of requests, compiled beside everything else: that may take as long as many steps.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_schemas::rpc::worker as wire;
use weir_schemas::rpc::worker::grammar::Kind;
use weir_text::{Grammar, GrammarSpec, TextModel};

/// Requests of all sessions that may wait for their grammars; a session with more is held back.
const MAX_WAITING: usize = 256;

/// Compiles a few grammars at a time.
#[derive(Debug, Clone)]
pub(crate) struct GrammarCompiler {
    waiting: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

impl GrammarCompiler {
    pub(crate) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() / 4);
        Self {
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
            running: Arc::new(Semaphore::new(threads.max(1))),
        }
    }

    /// A place among those who wait.
    pub(super) async fn place(&self) -> OwnedSemaphorePermit {
        self.waiting.clone().acquire_owned().await.expect("never closed")
    }

    /// # Errors
    /// Why the grammar cannot be followed, in words that may be shown.
    pub(super) async fn compile(
        &self,
        text: Arc<TextModel>,
        grammar: wire::Grammar,
    ) -> Result<Grammar, String> {
        let spec = match grammar.kind {
            Some(Kind::JsonObject(true)) => GrammarSpec::JsonObject,
            Some(Kind::JsonSchema(schema)) => GrammarSpec::JsonSchema(schema),
            Some(Kind::Lark(lark)) => GrammarSpec::Lark(lark),
            Some(Kind::JsonObject(false)) | None => return Err("grammar has no kind".to_owned()),
        };
        let _running = self.running.acquire().await.expect("never closed");
        let compiled = tokio::task::spawn_blocking(move || Grammar::compile(&text, &spec)).await;
        compiled
            .map_err(|_| "the grammar could not be compiled".to_owned())?
            .map_err(|error| error.to_string())
    }
}

//! The components of one process, and the order in which they stop: the gateway first, so that everything behind it
//! is still there while it drains and its records are relayed.

use std::future::Future;

use futures::future::select_all;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What runs, in the order in which it was started.
#[derive(Debug, Default)]
pub(super) struct Stack {
    components: Vec<Component>,
}

#[derive(Debug)]
struct Component {
    name: &'static str,
    cancel: CancellationToken,
    task: JoinSet<()>,
}

impl Stack {
    /// Takes a started component over: its own stop signal, and what resolves when it has ended.
    pub(super) fn push(
        &mut self,
        name: &'static str,
        cancel: CancellationToken,
        ended: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut task = JoinSet::new();
        task.spawn(ended);
        self.components.push(Component { name, cancel, task });
    }

    /// Resolves if a component ends without having been asked to.
    pub(super) async fn broken(&mut self) -> &'static str {
        let ends = self.components.iter_mut().map(|component| {
            Box::pin(async {
                component.task.join_next().await;
                component.name
            })
        });
        select_all(ends).await.0
    }

    /// Stops the last started first, each after the one before it has ended.
    pub(super) async fn stop(mut self) {
        while let Some(mut component) = self.components.pop() {
            tracing::info!(component = component.name, "stopping");
            component.cancel.cancel();
            if let Some(Err(error)) = component.task.join_next().await {
                tracing::error!(%error, component = component.name, "ended abnormally");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::Mutex;

    #[tokio::test]
    async fn the_last_started_stops_first() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut stack = Stack::default();
        for name in ["ledger", "worker", "gateway"] {
            let (cancel, order) = (CancellationToken::new(), order.clone());
            let ended = cancel.clone();
            stack.push(name, cancel, async move {
                ended.cancelled().await;
                order.lock().unwrap().push(name);
            });
        }
        stack.stop().await;
        assert_eq!(*order.lock().unwrap(), ["gateway", "worker", "ledger"]);
    }

    #[tokio::test]
    async fn an_end_that_nobody_asked_for_is_noticed() {
        let mut stack = Stack::default();
        stack.push("ledger", CancellationToken::new(), std::future::pending());
        stack.push("worker", CancellationToken::new(), async {});
        assert_eq!(stack.broken().await, "worker");
    }
}

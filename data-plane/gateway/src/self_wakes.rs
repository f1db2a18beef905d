//! A task that is woken by what it does itself is polled again at once. Tokio would put it back into its queue and wake
//! another thread to look for it there. Hyper's connections do that with each request body (the handler's wish for it
//! wakes the connection, in whose task the handler runs), and h2's streams with each message (they are given room to
//! send and told of it). On a gateway with little to do the second thread costs a request a sixth of its CPU, and its
//! first token the time that the two spend on handing tasks to each other.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::task::AtomicWaker;
use hyper::rt::Executor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// In a row, before other tasks have their turn.
const MAX_POLLS: usize = 8;

const IDLE: u8 = 0;
const POLLED: u8 = 1;
const WOKEN: u8 = 2;

/// Runs a future to its end.
pub(crate) async fn without_self_wakes<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    poll_fn(|context| wakes.poll(future.as_mut(), &waker, context)).await
}

/// Runs what a connection consists of, until it is cut.
#[derive(Debug, Clone)]
pub(crate) struct WithoutSelfWakes {
    pub(crate) tasks: TaskTracker,
    pub(crate) cut: CancellationToken,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for WithoutSelfWakes {
    fn execute(&self, future: F) {
        self.tasks.spawn(self.cut.clone().run_until_cancelled_owned(without_self_wakes(future)));
    }
}

#[derive(Debug, Default)]
struct Wakes {
    /// [`IDLE`]; [`POLLED`] while the future is; [`WOKEN`] if it is to be polled once more.
    state: AtomicU8,
    task: AtomicWaker,
}

impl Wakes {
    fn poll<F: Future>(
        &self,
        mut future: Pin<&mut F>,
        waker: &Waker,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        self.task.register(context.waker());
        for _ in 0..MAX_POLLS {
            self.state.store(POLLED, Ordering::SeqCst);
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(waker)) {
                return Poll::Ready(output);
            }
            if self.state.compare_exchange(POLLED, IDLE, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return Poll::Pending;
            }
        }
        // It stays woken, so that nobody else need do this.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Whoever polls it sees that it is to be polled again.
        if self.state.swap(WOKEN, Ordering::SeqCst) == IDLE {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Debug, Default)]
    struct Counter(AtomicUsize);

    impl Counter {
        fn taken(&self) -> usize {
            self.0.swap(0, Ordering::SeqCst)
        }
    }

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn what_wakes_itself_is_polled_again_without_its_task_being_woken() {
        let task = Arc::new(Counter::default());
        let waker = Waker::from(task.clone());
        let mut left = MAX_POLLS - 1;
        let mut future = pin!(without_self_wakes(poll_fn(|context| {
            context.waker().wake_by_ref();
            left = left.saturating_sub(1);
            if left == 0 { Poll::Ready(()) } else { Poll::Pending }
        })));
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        assert_eq!(task.taken(), 0);
    }

    #[test]
    fn what_never_stops_waking_itself_lets_others_run() {
        let task = Arc::new(Counter::default());
        let waker = Waker::from(task.clone());
        let mut polls = 0;
        let mut future = pin!(without_self_wakes(poll_fn(|context| {
            context.waker().wake_by_ref();
            polls += 1;
            if polls == 2 * MAX_POLLS { Poll::Ready(()) } else { Poll::Pending }
        })));
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(task.taken(), 1);
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }

    #[test]
    fn a_wake_from_elsewhere_wakes_the_task_that_polled_last_once() {
        let tasks = [Arc::new(Counter::default()), Arc::new(Counter::default())];
        let (sender, wakers) = std::sync::mpsc::channel();
        let mut future = pin!(without_self_wakes(poll_fn(|context| {
            sender.send(context.waker().clone()).unwrap();
            Poll::<()>::Pending
        })));
        let mut poll = |task: &Arc<Counter>| {
            let waker = Waker::from(task.clone());
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        };
        tasks.iter().for_each(&mut poll);
        let own: Vec<Waker> = wakers.try_iter().collect();
        own.iter().for_each(Waker::wake_by_ref);
        assert_eq!([tasks[0].taken(), tasks[1].taken()], [0, 1]);
        poll(&tasks[0]);
        own[0].wake_by_ref();
        assert_eq!([tasks[0].taken(), tasks[1].taken()], [1, 0]);
    }
}

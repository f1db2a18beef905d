//! A pinned thread pool for calls of microseconds: workers spin for a bounded time between calls, then sleep.
//!
//! One call at a time: every thread (the caller is thread 0) runs the same function with its own index, and the call returns
//! when all have. There are no queues and no tasks; a call that wants balance shares an atomic counter among its threads.

mod affinity;

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an idle thread spins before it sleeps. Longer than the gap between two calls of a step (microseconds) and the
/// engine's work between steps; short enough that an idle server costs nothing.
const SPIN_LIMIT: Duration = Duration::from_micros(200);
/// Spins between two looks at the clock.
const SPINS_PER_CLOCK_READ: u32 = 64;

/// What a call runs on every thread.
type Job<'a> = dyn Fn(usize) + Sync + 'a;

/// The threads. Dropping it ends them.
#[derive(Debug)]
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a call: the pool runs one at a time.
    running: Mutex<()>,
}

#[derive(Debug)]
struct Shared {
    /// Counts calls; a worker runs when it sees a new number.
    call: AtomicU64,
    job: JobSlot,
    /// Workers that have not finished the current call.
    pending: AtomicUsize,
    stop: AtomicBool,
    /// Threads asleep (or about to be) on `wake`.
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The current call's function, its lifetime erased.
struct JobSlot(UnsafeCell<Option<&'static Job<'static>>>);

// SAFETY: written by the one caller only while no worker is in a call (`pending` is 0), read by workers only between their
// seeing the call's number (released after the write) and their leaving `pending`.
unsafe impl Sync for JobSlot {}
// SAFETY: the function is `Sync`, so a reference to it may move between threads.
unsafe impl Send for JobSlot {}

impl std::fmt::Debug for JobSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobSlot")
    }
}

impl ThreadPool {
    /// `num_threads` in all, the caller's included. Each worker is pinned to one of the CPUs this process may use, the first of
    /// which is left to the caller. If the system refuses a thread, the pool is smaller.
    pub fn new(num_threads: usize) -> Self {
        let shared = Arc::new(Shared {
            call: AtomicU64::new(0),
            job: JobSlot(UnsafeCell::new(None)),
            pending: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        });
        let cpus = affinity::allowed_cpus();
        let spawn = |index: usize| {
            let (shared, cpu) = (Arc::clone(&shared), cpus.get(index % cpus.len().max(1)).copied());
            let body = move || {
                if let Some(cpu) = cpu {
                    affinity::pin_this_thread(cpu);
                }
                shared.serve(index);
            };
            std::thread::Builder::new().name(format!("weir-cpu-{index}")).spawn(body)
        };
        let workers = (1..num_threads).map_while(|index| spawn(index).ok()).collect();
        Self { shared, workers, running: Mutex::new(()) }
    }

    /// Threads that run a call.
    pub fn num_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(thread)` on every thread, `thread` in `0..num_threads`, and returns when all are done. A panic in any of them
    /// is raised here, after all are done. Must not be called from inside a job.
    pub fn run(&self, job: &Job<'_>) {
        if self.workers.is_empty() {
            return job(0);
        }
        let _running = held(&self.running);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Workers use the reference only until they leave `pending`, and this function
        // does not return (or unwind) before `pending` is 0, so the borrow outlives every use.
        let erased = unsafe { std::mem::transmute::<&Job<'_>, &'static Job<'static>>(job) };
        // SAFETY: no worker is in a call: the previous one ended with `pending` at 0, and `running` is held.
        unsafe { *shared.job.0.get() = Some(erased) };
        shared.pending.store(self.workers.len(), Ordering::Relaxed);
        shared.call.fetch_add(1, Ordering::SeqCst);
        shared.wake_sleepers();
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        shared.wait_until(|| shared.pending.load(Ordering::Acquire) == 0);
        let theirs = held(&shared.panic).take();
        if let Some(payload) = own.err().or(theirs) {
            resume_unwind(payload);
        }
    }
}

impl Shared {
    /// A worker's life.
    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            self.wait_until(|| self.call.load(Ordering::SeqCst) != seen || self.stop.load(Ordering::SeqCst));
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            seen += 1;
            // SAFETY: a new call's number was seen, so its function was written before and stays until this worker leaves
            // `pending` below.
            let job = unsafe { *self.job.0.get() }.expect("a call has a function");
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(index))) {
                *held(&self.panic) = Some(payload);
            }
            if self.pending.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.wake_sleepers();
            }
        }
    }

    /// Returns once `ready`, spinning for [`SPIN_LIMIT`] and then asleep.
    fn wait_until(&self, ready: impl Fn() -> bool) {
        let mut deadline = None;
        loop {
            for _ in 0..SPINS_PER_CLOCK_READ {
                if ready() {
                    return;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now > *deadline.get_or_insert(now + SPIN_LIMIT) {
                break;
            }
        }
        // Registered before the last look, so that whoever changes the state after it sees a sleeper and takes the lock.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut guard = held(&self.lock);
        while !ready() {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = held(&self.lock);
            self.wake.notify_all();
        }
    }
}

/// The lock, whether or not a panic passed through an earlier holder: nothing it guards can be left half done.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake_sleepers();
        for worker in self.workers.drain(..) {
            // A worker catches its job's panics, so joining cannot fail with anything worth reporting.
            drop(worker.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_runs_every_call_once() {
        for num_threads in [1, 2, 3, 5] {
            let pool = ThreadPool::new(num_threads);
            assert_eq!(pool.num_threads(), num_threads);
            let counts: Vec<AtomicUsize> = (0..num_threads).map(|_| AtomicUsize::new(0)).collect();
            for call in 1..=200 {
                pool.run(&|thread| {
                    counts[thread].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == call));
            }
        }
    }

    #[test]
    fn sleeping_workers_wake() {
        let pool = ThreadPool::new(3);
        let total = AtomicUsize::new(0);
        for _ in 0..5 {
            std::thread::sleep(3 * SPIN_LIMIT);
            pool.run(&|_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(total.into_inner(), 15);
    }

    #[test]
    fn a_sleeping_caller_wakes() {
        let pool = ThreadPool::new(2);
        let done = AtomicBool::new(false);
        pool.run(&|thread| {
            if thread == 1 {
                std::thread::sleep(5 * SPIN_LIMIT);
                done.store(true, Ordering::Relaxed);
            }
        });
        assert!(done.into_inner());
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let pool = ThreadPool::new(2);
        for bad in 0..2 {
            let call = || pool.run(&|thread| assert_ne!(thread, bad, "as asked"));
            assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
        }
        let total = AtomicUsize::new(0);
        pool.run(&|_| {
            total.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(total.into_inner(), 2);
    }
}

//! A pinned thread pool for calls of microseconds: workers spin for a bounded time between calls, then sleep.
//!
//! One call at a time. The caller always works; a worker joins if it arrives before the caller is done, and only those that
//! joined are waited for. On an idle machine all arrive within a microsecond. On a busy one a worker may not get a CPU for
//! milliseconds, and the call is over without it instead of waiting. So a call's function must do all of the work on
//! whatever threads run it: threads share it out through an atomic counter.

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
    state: CallState,
    job: JobSlot,
    stop: AtomicBool,
    /// Threads asleep (or about to be) on `wake`.
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The number of the current call, whether workers may still join it, and how many are in it: one word, so that joining and
/// closing cannot cross.
#[derive(Debug)]
struct CallState(AtomicU64);

impl CallState {
    const WORKERS: u64 = (1 << 16) - 1;
    const OPEN: u64 = 1 << 16;
    const CALL: u64 = 1 << 17;

    /// Starts the next call. Nobody is in the last one.
    fn open(&self) {
        let state = self.0.load(Ordering::Relaxed);
        self.0.store((state & !(Self::CALL - 1)) + Self::CALL + Self::OPEN, Ordering::SeqCst);
    }

    /// Lets nobody join any more.
    fn close(&self) {
        self.0.fetch_and(!Self::OPEN, Ordering::AcqRel);
    }

    /// Whether all that joined have left.
    fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) & Self::WORKERS == 0
    }

    /// The current call, if it is open and not `last`.
    fn new_call(&self, last: u64) -> Option<u64> {
        let state = self.0.load(Ordering::SeqCst);
        (state & Self::OPEN != 0 && state / Self::CALL != last).then_some(state / Self::CALL)
    }

    /// Joins `call` if it is still open.
    fn join(&self, call: u64) -> bool {
        let may_join =
            |state: u64| (state & Self::OPEN != 0 && state / Self::CALL == call).then_some(state + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, may_join).is_ok()
    }

    /// Leaves the call; returns whether nobody is left.
    fn leave(&self) -> bool {
        self.0.fetch_sub(1, Ordering::SeqCst) & Self::WORKERS == 1
    }
}

/// The current call's function, its lifetime erased.
struct JobSlot(UnsafeCell<Option<&'static Job<'static>>>);

// SAFETY: written by the one caller only while no worker is in a call and none can join (the last call is closed and empty),
// read by workers only between joining a call and leaving it.
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
            state: CallState(AtomicU64::new(0)),
            job: JobSlot(UnsafeCell::new(None)),
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

    /// Runs `job(thread)` on this thread (as 0) and on those workers that arrive in time, each once with its own index in
    /// `1..num_threads`, and returns when all that began are done. A panic in any of them is raised here, after all are
    /// done. Must not be called from inside a job.
    pub fn run(&self, job: &Job<'_>) {
        if self.workers.is_empty() {
            return job(0);
        }
        let _running = held(&self.running);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Workers use the reference only while they are in the call, and this function does
        // not return (or unwind) before the call is closed and empty, so the borrow outlives every use.
        let erased = unsafe { std::mem::transmute::<&Job<'_>, &'static Job<'static>>(job) };
        // SAFETY: the last call is closed and empty, and `running` is held.
        unsafe { *shared.job.0.get() = Some(erased) };
        shared.state.open();
        shared.wake_sleepers();
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        shared.state.close();
        shared.wait_until(|| shared.state.is_empty());
        let theirs = held(&shared.panic).take();
        if let Some(payload) = own.err().or(theirs) {
            resume_unwind(payload);
        }
    }
}

impl Shared {
    /// A worker's life.
    fn serve(&self, index: usize) {
        let mut last = 0;
        loop {
            self.wait_until(|| self.state.new_call(last).is_some() || self.stop.load(Ordering::SeqCst));
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let Some(call) = self.state.new_call(last).filter(|call| self.state.join(*call)) else {
                continue;
            };
            last = call;
            // SAFETY: this worker has joined the call, so its function was written before and stays until it leaves.
            let job = unsafe { *self.job.0.get() }.expect("a call has a function");
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(index))) {
                *held(&self.panic) = Some(payload);
            }
            if self.state.leave() {
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

    /// A job that is over only when every thread is in it.
    fn run_on_all(pool: &ThreadPool, work: &Job<'_>) {
        let arrived = AtomicUsize::new(0);
        pool.run(&|thread| {
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < pool.num_threads() {
                std::thread::yield_now();
            }
            work(thread);
        });
    }

    #[test]
    fn every_thread_runs_a_call_once() {
        for num_threads in [1, 2, 3, 5] {
            let pool = ThreadPool::new(num_threads);
            assert_eq!(pool.num_threads(), num_threads);
            let counts: Vec<AtomicUsize> = (0..num_threads).map(|_| AtomicUsize::new(0)).collect();
            for call in 1..=50 {
                run_on_all(&pool, &|thread| {
                    counts[thread].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == call));
            }
        }
    }

    #[test]
    fn shared_work_is_done_once_whoever_comes() {
        let pool = ThreadPool::new(3);
        let done: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
        for call in 1..=2000 {
            let next = AtomicUsize::new(0);
            pool.run(&|_| {
                while let Some(done) = done.get(next.fetch_add(1, Ordering::Relaxed)) {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == call));
        }
    }

    #[test]
    fn sleeping_workers_wake() {
        let pool = ThreadPool::new(3);
        let total = AtomicUsize::new(0);
        for _ in 0..5 {
            std::thread::sleep(3 * SPIN_LIMIT);
            run_on_all(&pool, &|_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(total.into_inner(), 15);
    }

    #[test]
    fn a_sleeping_caller_wakes() {
        let pool = ThreadPool::new(2);
        let done = AtomicBool::new(false);
        run_on_all(&pool, &|thread| {
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
            let call = || run_on_all(&pool, &|thread| assert_ne!(thread, bad, "as asked"));
            assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
        }
        let total = AtomicUsize::new(0);
        run_on_all(&pool, &|_| {
            total.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(total.into_inner(), 2);
    }
}

//! A small pool of threads that share the tasks of one operation.
//!
//! Owns its threads; lends them for one [`run`](Pool::run) at a time. What a task does must not
//! depend on which thread does it: this is what makes results independent of the number of threads.
//!
//! Invariants:
//! - A thread touches the caller's closure only between *joining* a run and *leaving* it, and `run`
//!   does not return (nor unwind) before every thread that joined has left. This is what makes the
//!   erased lifetime sound.
//! - The caller never waits for a thread that has not joined: one that sleeps costs nothing when
//!   the caller is done first. On a machine shared with others that happens often.
//! - An idle thread spins for `SPIN` and then sleeps until the next run.

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread looks for work before it sleeps: longer than the gaps between the operations
/// of one forward pass, shorter than anybody would notice on a shared machine.
const SPIN: Duration = Duration::from_micros(40);

/// In `State::word`: threads may join the run.
const OPEN: u64 = 1 << 31;
/// In `State::word`: the threads now inside the run.
const JOINED: u64 = OPEN - 1;
/// More threads than any machine has cores for; fewer than [`JOINED`] can count.
const THREADS_MAX: usize = 1 << 12;
/// In `State::word`: the number of the run starts at this bit.
const RUN: u32 = 32;

type Task<'a> = &'a (dyn Fn(usize) + Sync);

/// What the joined threads need to know of a run.
#[derive(Clone, Copy)]
struct Job {
    task: Task<'static>,
    n_tasks: usize,
}

struct State {
    /// Number of the run, whether it is open, and how many threads are inside.
    word: AtomicU64,
    /// The next task that nobody has taken.
    next: AtomicUsize,
    /// Written by the caller of `run` while the word is not open and nobody is inside.
    job: UnsafeCell<Option<Job>>,
    /// What a task of another thread panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleepers: AtomicUsize,
    caller_sleeps: AtomicBool,
    stop: AtomicBool,
    sleep: Mutex<()>,
    work: Condvar,
    done: Condvar,
}

// SAFETY: all fields but `job` are `Sync`. `job` is written only by the holder of `Pool::running`
// when no thread has joined, and read only by threads that joined after the writer opened the word;
// both are ordered by the word.
unsafe impl Sync for State {}
// SAFETY: as for `Sync`; a `Job` is a shared reference to something `Sync`.
unsafe impl Send for State {}

/// Threads that share the tasks of an operation: `threads() - 1` of them, and the caller.
pub struct Pool {
    state: Arc<State>,
    handles: Vec<JoinHandle<()>>,
    running: Mutex<()>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool of `n_threads` threads, the caller of `run` being one of them. Zero means one.
    ///
    /// If the system refuses a thread, the pool has fewer; see [`threads`](Self::threads).
    #[must_use]
    pub fn new(n_threads: usize) -> Self {
        let state = Arc::new(State {
            word: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            caller_sleeps: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleep: Mutex::new(()),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let spawn = |index: usize| {
            let state = Arc::clone(&state);
            std::thread::Builder::new()
                .name(format!("strata-cpu-{index}"))
                .spawn(move || state.serve())
                .ok()
        };
        let handles = (1..n_threads.min(THREADS_MAX)).map_while(spawn).collect();
        Self { state, handles, running: Mutex::new(()) }
    }

    /// Threads that can work at once, the caller included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `task` with every index below `n_tasks`, each exactly once, and returns when all are
    /// done.
    ///
    /// Called from inside a task, or while another thread runs something, it does all tasks on the
    /// calling thread.
    ///
    /// # Panics
    /// When a task does; the other tasks are finished first or never started.
    pub fn run(&self, n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let running = match self.running.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if running.is_none() || self.handles.is_empty() || n_tasks < 2 {
            (0..n_tasks).for_each(task);
            return;
        }
        // SAFETY: only the lifetime is erased. The reference is used by threads that joined this
        // run, and `close` below waits until all of them have left, also when a task of this thread
        // unwinds.
        let task = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(task) };
        // A run whose caller unwound may have left another thread's panic behind.
        lock(&self.state.panic).take();
        let job = Job { task, n_tasks };
        let closer = self.state.open(job);
        self.state.work(job);
        drop(closer);
        let panic = lock(&self.state.panic).take();
        if let Some(payload) = panic {
            drop(running);
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.state.sleep));
        self.state.work.notify_all();
        for handle in self.handles.drain(..) {
            // A task's panic was caught; a thread has nothing else to panic with.
            let _ = handle.join();
        }
    }
}

/// Closes a run when dropped, so also when the caller's own task unwinds.
struct Closer<'a>(&'a State);

impl Drop for Closer<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl State {
    /// Publishes a run. The caller holds `Pool::running`, and the previous run is closed and empty.
    fn open(&self, job: Job) -> Closer<'_> {
        // SAFETY: the word is closed with nobody inside, and no other caller can be here: this
        // thread holds `Pool::running`. So nobody reads the cell.
        unsafe { *self.job.get() = Some(job) };
        self.next.store(0, Ordering::Relaxed);
        let run = (self.word.load(Ordering::Relaxed) >> RUN).wrapping_add(1) << RUN;
        self.word.store(run | OPEN, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.sleep));
            self.work.notify_all();
        }
        Closer(self)
    }

    /// Lets nobody join any more and waits until all who joined have left.
    fn close(&self) {
        let is_empty = |word: u64| word & JOINED == 0;
        self.word.fetch_and(!OPEN, Ordering::SeqCst);
        if spin_until(|| is_empty(self.word.load(Ordering::Acquire))) {
            return;
        }
        let mut guard = lock(&self.sleep);
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while !is_empty(self.word.load(Ordering::SeqCst)) {
            guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }

    /// Takes tasks until none is left.
    fn work(&self, job: Job) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= job.n_tasks {
                return;
            }
            (job.task)(index);
        }
    }

    /// The life of a thread of the pool.
    fn serve(&self) {
        let mut last_run = 0;
        while let Some(run) = self.await_run(last_run) {
            last_run = run;
            if !self.join(run) {
                continue;
            }
            // SAFETY: this thread has joined, so the cell is not written before it leaves, and what
            // was written before the word was opened is visible by the acquire in `join`.
            let job = unsafe { *self.job.get() };
            let job = job.expect("a run is opened only after its job is written");
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.work(job))) {
                *lock(&self.panic) = Some(payload);
            }
            self.leave();
        }
    }

    /// Waits for an open run other than `last_run`; `None` when the pool is dropped.
    fn await_run(&self, last_run: u64) -> Option<u64> {
        let found = || {
            let word = self.word.load(Ordering::SeqCst);
            (word & OPEN != 0 && word >> RUN != last_run).then_some(word >> RUN)
        };
        let mut result = None;
        let is_over = || self.stop.load(Ordering::SeqCst);
        spin_until(|| {
            result = found();
            result.is_some() || is_over()
        });
        if result.is_none() && !is_over() {
            let mut guard = lock(&self.sleep);
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            loop {
                result = found();
                if result.is_some() || is_over() {
                    break;
                }
                guard = self.work.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        if is_over() { None } else { result }
    }

    /// Enters the run, unless it is closed by now.
    fn join(&self, run: u64) -> bool {
        self.word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
                (word & OPEN != 0 && word >> RUN == run).then(|| word + 1)
            })
            .is_ok()
    }

    /// Leaves the run and wakes the caller if it sleeps and this was the last thread.
    fn leave(&self) {
        let word = self.word.fetch_sub(1, Ordering::SeqCst) - 1;
        if word & (OPEN | JOINED) == 0 && self.caller_sleeps.load(Ordering::SeqCst) {
            drop(lock(&self.sleep));
            self.done.notify_all();
        }
    }
}

/// Spins until `condition` holds, at most [`SPIN`]; says whether it held.
fn spin_until(mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            if condition() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            return false;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

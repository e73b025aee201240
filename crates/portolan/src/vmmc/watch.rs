//! The thread that sees exporters go.
//!
//! One a process, there as long as it has imports. It sleeps in epoll over the connections to
//! exporters and their pidfds, and says in a word of the import what it has seen. It touches
//! nothing else of an import, and is never the last to hold one.

use crate::domain::Descriptor;
use portolan_abi::vmmc::RING;
use portolan_sys::process::{EventFd, PidFd};
use portolan_sys::socket;
use portolan_sys::watch::Watch;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

/// Nothing has been seen.
pub(super) const THERE: u32 = 0;
/// The exporter has let go of the connection.
pub(super) const DISCONNECTED: u32 = 1;
/// The exporter is dead.
pub(super) const DIED: u32 = 2;

/// Enough for a thread that stores a word.
const STACK: usize = 64 << 10;

/// An import's exporter, watched until this is dropped.
pub(super) struct Watched {
    watcher: Arc<Watcher>,
    number: u64,
    connection: Arc<Descriptor>,
    over: Arc<AtomicU32>,
}

impl Watched {
    pub(super) fn new(connection: Descriptor, exporter: PidFd) -> io::Result<Self> {
        let watcher = Watcher::of_process()?;
        let over = Arc::new(AtomicU32::new(THERE));
        let connection = Arc::new(connection);
        let entry = Entry {
            connection: Arc::clone(&connection),
            exporter: Descriptor::new(exporter),
            over: Arc::clone(&over),
        };
        let number = watcher.shared.add(entry)?;
        Ok(Self {
            watcher,
            number,
            connection,
            over,
        })
    }

    /// Has the exporter look at what was posted. If there is no room for a ring, it has others
    /// to look for; if it has gone, that is seen.
    pub(super) fn ring(&self) {
        let _ = socket::send_by(&**self.connection, &[RING], &[], Some(Instant::now()));
    }

    /// What has been seen of the exporter.
    #[inline]
    pub(super) fn seen(&self) -> u32 {
        // Acquire: pairs with `look`; what the exporter said before is there when this is.
        self.over.load(Ordering::Acquire)
    }

    /// Whether the exporter is dead, as the kernel says now.
    pub(super) fn is_dead(&self) -> bool {
        let imports = self.watcher.shared.imports();
        let entry = imports.by_number.get(&self.number);
        entry.is_none_or(|entry| entry.exporter.is_dead())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !portolan_sys::fork::in_child() {
            self.watcher.shared.remove(self.number);
        }
    }
}

struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    watch: Watch,
    /// Ends the thread.
    over: EventFd,
    imports: Mutex<Imports>,
}

#[derive(Default)]
struct Imports {
    last: u64,
    by_number: HashMap<u64, Entry>,
}

struct Entry {
    connection: Arc<Descriptor>,
    exporter: Descriptor<PidFd>,
    over: Arc<AtomicU32>,
}

/// The number of [`Shared::over`]; those of imports are even for connections, odd for pidfds.
const OVER: u64 = 0;

impl Watcher {
    /// That of this process.
    fn of_process() -> io::Result<Arc<Self>> {
        static KNOWN: Mutex<Weak<Watcher>> = Mutex::new(Weak::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = known.upgrade() {
            return Ok(watcher);
        }
        let shared = Arc::new(Shared {
            watch: Watch::new()?,
            over: EventFd::new()?,
            imports: Mutex::default(),
        });
        shared.watch.add(&shared.over, OVER)?;
        let its_own = Arc::clone(&shared);
        let thread =
            portolan_sys::process::spawn_quiet("portolan-import", STACK, move || its_own.serve())?;
        let watcher = Arc::new(Self {
            shared,
            thread: Some(thread),
        });
        *known = Arc::downgrade(&watcher);
        Ok(watcher)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // In a forked child there is no thread, and its descriptors are let go of.
        if portolan_sys::fork::in_child() {
            return;
        }
        let _ = self.shared.over.notify();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        while let Ok(numbers) = self.watch.wait() {
            for number in numbers {
                if number == OVER {
                    return;
                }
                self.look(number);
            }
        }
    }

    fn look(&self, number: u64) {
        let imports = self.imports();
        let Some(entry) = imports.by_number.get(&(number / 2)) else {
            return;
        };
        let seen = if number % 2 == 1 {
            if entry.exporter.is_dead() {
                DIED
            } else {
                THERE
            }
        } else {
            // An exporter says nothing after its answer: whatever is there, it is none.
            match socket::try_receive(&**entry.connection, &mut [0; 1], 0) {
                Ok(None) => THERE,
                Ok(Some(_)) | Err(_) => DISCONNECTED,
            }
        };
        // Release: pairs with `seen`. What is known of a death stays.
        entry.over.fetch_max(seen, Ordering::Release);
    }

    fn add(&self, entry: Entry) -> io::Result<u64> {
        let mut imports = self.imports();
        imports.last += 1;
        let number = imports.last;
        // Added before it is watched: what is the matter already is found.
        let entry = imports.by_number.entry(number).insert_entry(entry);
        let watched = self
            .watch
            .add(&**entry.get().connection, number * 2)
            .and_then(|()| self.watch.add(&*entry.get().exporter, number * 2 + 1));
        if let Err(error) = watched {
            let entry = entry.remove();
            let _ = self.watch.remove(&**entry.connection);
            return Err(error);
        }
        Ok(number)
    }

    fn remove(&self, number: u64) {
        let gone = self.imports().by_number.remove(&number);
        if let Some(entry) = gone {
            // Explicitly: others may have descriptors of the same files.
            let _ = self.watch.remove(&**entry.connection);
            let _ = self.watch.remove(&*entry.exporter);
        }
    }

    fn imports(&self) -> MutexGuard<'_, Imports> {
        self.imports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! A directory in a thread of its own, which the node's thread never waits for.
//!
//! ```text
//!  Threaded                          Post
//!   announce -> [ newest ] --------> announced
//!   take     -> [ queue of 16 ] ---> connection
//!   news     <- [ newest ] <-------- say
//!               (a beat) <---------- beat, which each of these is too
//! ```

use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan_sys::process::EventFd;
use portolan_transport::clock::Clock;
use portolan_transport::{Connection, NodeId};

use super::{
    Announcement, Directory, DirectoryMember, DirectoryState, DirectoryStatus, LEAVE, News, SILENT,
    Seat,
};

/// Connections that wait for the thread, at most.
const WAITING: usize = 16;
/// The pause between two looks whether the thread has ended.
const LOOK: Duration = Duration::from_millis(5);

/// Holds one value: the newest. The node's side never waits for the other one (D1): a thread that is
/// stopped while it has the lock keeps nobody.
#[derive(Debug)]
struct Newest<T>(Mutex<Option<T>>);

impl<T> Newest<T> {
    fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Puts a value in place of the one before; gives it back if the other side has the lock.
    fn try_put(&self, value: T) -> Result<(), T> {
        match self.0.try_lock() {
            Ok(mut place) => *place = Some(value),
            Err(std::sync::TryLockError::Poisoned(place)) => *place.into_inner() = Some(value),
            Err(std::sync::TryLockError::WouldBlock) => return Err(value),
        }
        Ok(())
    }

    fn try_take(&self) -> Option<T> {
        match self.0.try_lock() {
            Ok(mut place) => place.take(),
            Err(std::sync::TryLockError::Poisoned(place)) => place.into_inner().take(),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// Of the thread's side, which may wait: the node's side holds the lock for a move.
    fn put(&self, value: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
    }

    fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What both sides have.
#[derive(Debug)]
struct Shared {
    announced: Newest<Announcement>,
    news: Newest<News>,
    said: Newest<Said>,
    /// What wakes the thread.
    wakes: Arc<EventFd>,
    ends: AtomicBool,
    /// When the thread was last seen, in milliseconds of the clock; 0 before.
    beat: AtomicU64,
}

/// What a thread says of itself.
#[derive(Clone, Debug, Default)]
struct Said {
    failure: Option<String>,
    connected: Vec<NodeId>,
}

/// The node's side.
pub struct Threaded {
    kind: &'static str,
    shared: Arc<Shared>,
    gives: SyncSender<(NodeId, Box<dyn Connection>)>,
    thread: Option<JoinHandle<()>>,
    clock: Arc<dyn Clock>,
    /// What has found the lock taken.
    late: Option<Announcement>,
    last: News,
    said: Said,
    /// What it said of names counted when the node asked last.
    counted: bool,
    failed: Option<String>,
}

impl fmt::Debug for Threaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threaded")
            .field("kind", &self.kind)
            .field("state", &self.how())
            .finish_non_exhaustive()
    }
}

/// The thread's side.
#[derive(Debug)]
pub struct Post {
    shared: Arc<Shared>,
    takes: Receiver<(NodeId, Box<dyn Connection>)>,
    clock: Arc<dyn Clock>,
    rings: Arc<EventFd>,
}

impl Threaded {
    /// A directory of this kind whose thread does `work`, until that returns.
    pub fn start(
        kind: &'static str,
        seat: &Seat,
        work: impl FnOnce(Post) + Send + 'static,
    ) -> Self {
        let (gives, takes) = sync_channel(WAITING);
        let made = EventFd::new();
        let failed = made.as_ref().err().map(ToString::to_string);
        // Without its own it is woken with the node.
        let wakes = made.map_or_else(|_| Arc::clone(&seat.rings), Arc::new);
        let shared = Arc::new(Shared {
            announced: Newest::new(),
            news: Newest::new(),
            said: Newest::new(),
            wakes,
            ends: AtomicBool::new(false),
            beat: AtomicU64::new(0),
        });
        let post = Post {
            shared: Arc::clone(&shared),
            takes,
            clock: Arc::clone(&seat.clock),
            rings: Arc::clone(&seat.rings),
        };
        let thread = std::thread::Builder::new().name("node-directory".to_owned());
        let (thread, failed) = match (failed, thread) {
            (Some(failed), _) => (None, Some(failed)),
            (None, thread) => match thread.spawn(move || work(post)) {
                Ok(thread) => (Some(thread), None),
                Err(error) => (None, Some(error.to_string())),
            },
        };
        Self {
            kind,
            shared,
            gives,
            thread,
            clock: Arc::clone(&seat.clock),
            late: None,
            last: News::default(),
            said: Said::default(),
            counted: false,
            failed,
        }
    }

    fn how(&self) -> DirectoryState {
        let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        // Relaxed: it orders nothing.
        let beat = self.shared.beat.load(Ordering::Relaxed);
        let silence = self.clock.now().saturating_sub(Duration::from_millis(beat));
        match beat {
            _ if has_ended => DirectoryState::Ended,
            0 => DirectoryState::Starting,
            _ if silence >= SILENT => DirectoryState::Silent,
            _ => DirectoryState::Up,
        }
    }
}

impl Directory for Threaded {
    fn announce(&mut self, own: &Announcement) {
        self.late = self.shared.announced.try_put(own.clone()).err();
        let _ = self.shared.wakes.notify();
    }

    fn news(&mut self) -> Option<News> {
        if let Some(late) = self.late.take() {
            self.announce(&late);
        }
        if let Some(said) = self.shared.said.try_take() {
            self.said = said;
        }
        let fresh = self.shared.news.try_take();
        let counts = self.how() == DirectoryState::Up;
        if fresh.is_none() && counts == self.counted {
            return None;
        }
        self.counted = counts;
        if let Some(fresh) = fresh {
            self.last = fresh;
        }
        // D3.
        let holders = self.last.holders.clone().filter(|_| counts);
        let members = self.last.members.clone();
        Some(News { members, holders })
    }

    fn take(&mut self, node: NodeId, connection: Box<dyn Connection>) {
        // With so many that wait, or without a thread, it is dropped: its node comes again.
        if self.gives.try_send((node, connection)).is_ok() {
            let _ = self.shared.wakes.notify();
        }
    }

    fn state(&self) -> Option<DirectoryState> {
        Some(self.how())
    }

    fn status(&self) -> DirectoryStatus {
        let state = self.how();
        let ended = (state == DirectoryState::Ended).then(|| "its thread has ended".to_owned());
        let counts = state == DirectoryState::Up;
        let names = self.last.holders.as_ref().filter(|_| counts);
        let members = self.last.members.iter().map(|member| DirectoryMember {
            node: member.node.to_string(),
            name: member.name.clone(),
            incarnation: member.incarnation,
            addresses: member.addresses.clone(),
        });
        DirectoryStatus {
            kind: self.kind.to_owned(),
            state: Some(state),
            failure: self.failed.clone().or(ended).or(self.said.failure.clone()),
            connected: self
                .said
                .connected
                .iter()
                .map(ToString::to_string)
                .collect(),
            members: members.collect(),
            names: names.map_or(0, |holders| holders.count()),
            ..DirectoryStatus::default()
        }
    }

    fn end(&mut self) {
        // Release: pairs with `Post::is_over`.
        self.shared.ends.store(true, Ordering::Release);
        let _ = self.shared.wakes.notify();
        let until = Instant::now() + LEAVE;
        while self.thread.as_ref().is_some_and(|it| !it.is_finished()) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        // One that goes on ends with the process.
        self.thread = None;
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        let _ = self.shared.wakes.notify();
    }
}

impl Post {
    /// Readable when there is something new; [`rest`](Self::rest) makes it still.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.wakes.as_fd()
    }

    /// What makes that descriptor readable.
    pub fn waker(&self) -> Arc<EventFd> {
        Arc::clone(&self.shared.wakes)
    }

    /// Makes the descriptor still: look at all afterwards.
    pub fn rest(&self) {
        let _ = self.shared.wakes.drain();
    }

    /// The thread is there, and works. Without another beat within [`SILENT`] it counts as silent.
    pub fn beat(&self) {
        let now = u64::try_from(self.clock.now().as_millis()).unwrap_or(u64::MAX);
        let before = self.shared.beat.swap(now.max(1), Ordering::Relaxed);
        let silent = u64::try_from(SILENT.as_millis()).unwrap_or(u64::MAX);
        // What it has said counts again, or for the first time.
        if before == 0 || now.saturating_sub(before) >= silent {
            let _ = self.rings.notify();
        }
    }

    /// Whether the thread is to end.
    pub fn is_over(&self) -> bool {
        // Acquire: pairs with `Threaded::end`.
        self.shared.ends.load(Ordering::Acquire)
    }

    /// What the node announces, if that is new.
    pub fn announced(&self) -> Option<Announcement> {
        self.shared.announced.take()
    }

    /// A connection of another node's directory.
    pub fn connection(&self) -> Option<(NodeId, Box<dyn Connection>)> {
        self.takes.try_recv().ok()
    }

    /// Says what it knows now.
    pub fn say(&self, news: News) {
        self.beat();
        self.shared.news.put(news);
        let _ = self.rings.notify();
    }

    /// Says how it is.
    pub fn say_state(&self, failure: Option<String>, connected: Vec<NodeId>) {
        self.shared.said.put(Said { failure, connected });
    }
}

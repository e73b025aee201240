//! Wraps System V message queues, as a competitor to measure.
//!
//! Such a queue outlives its processes: it is removed when its creator drops it, and one
//! that a killed run left behind is removed by the next that looks for a key.

use std::io;
use std::ops::Range;

/// Keys that queues are made under: few, so that what was left behind is found.
const KEYS: Range<libc::key_t> = 0x504F_5200..0x504F_5280;
/// Made longer ago than this and never used: its creator is not coming back, in seconds.
const FORGOTTEN: libc::time_t = 3600;
/// Only we may use it.
const MODE: libc::c_int = 0o600;

/// A message queue in the kernel.
///
/// # Examples
///
/// ```
/// use portolan_instruments::sysv::{Letter, Queue};
/// let queue = Queue::create()?;
/// let mut letter = Letter::new(5);
/// letter.text_mut().copy_from_slice(b"hello");
/// queue.send(&letter)?;
/// let mut received = Letter::new(5);
/// assert_eq!(queue.receive(&mut received)?, 5);
/// assert_eq!(received.text(), b"hello");
/// assert!(queue.try_receive(&mut received).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Queue {
    id: libc::c_int,
    /// Whether it goes when this is dropped.
    ours: bool,
}

/// A message with room for its type before it, as the kernel wants it.
#[derive(Debug)]
pub struct Letter {
    /// The type, then the text.
    words: Vec<u64>,
    len: usize,
}

impl Letter {
    /// A message of `len` bytes, all zero.
    pub fn new(len: usize) -> Self {
        let mut words = vec![0; 1 + len.div_ceil(8)];
        // Any type above zero will do: no receiver chooses by it.
        words[0] = 1;
        Self { words, len }
    }

    /// The message's bytes.
    pub fn text(&self) -> &[u8] {
        let text = self.words[1..].as_ptr().cast();
        // SAFETY:
        // - In bounds: `new` made as many words as hold `len` bytes, after the first.
        // - Initialised, and borrowed as we are.
        unsafe { std::slice::from_raw_parts(text, self.len) }
    }

    /// The message's bytes, to write.
    pub fn text_mut(&mut self) -> &mut [u8] {
        let text = self.words[1..].as_mut_ptr().cast();
        // SAFETY:
        // - In bounds: `new` made as many words as hold `len` bytes, after the first.
        // - Initialised, any bytes are words, and borrowed exclusively as we are.
        unsafe { std::slice::from_raw_parts_mut(text, self.len) }
    }
}

impl Queue {
    /// Makes a queue.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: the system has no room for another (`/proc/sys/kernel/msgmni`), or all
    /// keys that we use are taken (`ipcs -q`).
    pub fn create() -> io::Result<Self> {
        for key in KEYS {
            match get(key) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                made => return made.map(|id| Self { id, ours: true }),
            }
            if forsaken(key)
                && let Ok(id) = get(key)
            {
                return Ok(Self { id, ours: true });
            }
        }
        Err(io::Error::from_raw_os_error(libc::ENOSPC))
    }

    /// What another process opens it by.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// The queue that another process made.
    pub fn open(id: i32) -> Self {
        Self { id, ours: false }
    }

    /// The longest message that the system takes (`/proc/sys/kernel/msgmax`), if it says.
    pub fn longest() -> Option<usize> {
        let text = std::fs::read_to_string("/proc/sys/kernel/msgmax").ok()?;
        text.trim().parse().ok()
    }

    /// Sends one message, waiting for room.
    ///
    /// # Errors
    ///
    /// `EINVAL`: too long for the system. `EIDRM`: the queue was removed.
    pub fn send(&self, letter: &Letter) -> io::Result<()> {
        self.send_with(letter, 0)
    }

    /// Sends one message if there is room.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the queue is full; else as [`Queue::send`].
    pub fn try_send(&self, letter: &Letter) -> io::Result<()> {
        self.send_with(letter, libc::IPC_NOWAIT)
    }

    /// Receives one message, waiting for it; returns its length.
    ///
    /// # Errors
    ///
    /// `E2BIG`: it is longer than the letter. `EIDRM`: the queue was removed.
    pub fn receive(&self, letter: &mut Letter) -> io::Result<usize> {
        self.receive_with(letter, 0)
    }

    /// Receives one message if there is one; returns its length.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the queue is empty; else as [`Queue::receive`].
    pub fn try_receive(&self, letter: &mut Letter) -> io::Result<usize> {
        self.receive_with(letter, libc::IPC_NOWAIT)
    }

    fn send_with(&self, letter: &Letter, flags: libc::c_int) -> io::Result<()> {
        loop {
            let from = letter.words.as_ptr().cast();
            // SAFETY:
            // - `from` points to a type and `len` bytes (`Letter::new`).
            let sent = unsafe { libc::msgsnd(self.id, from, letter.len, flags) };
            if sent == 0 {
                return Ok(());
            }
            retry(io::Error::last_os_error())?;
        }
    }

    fn receive_with(&self, letter: &mut Letter, flags: libc::c_int) -> io::Result<usize> {
        loop {
            let to = letter.words.as_mut_ptr().cast();
            // SAFETY:
            // - `to` points to room for a type and `len` bytes (`Letter::new`).
            let received = unsafe { libc::msgrcv(self.id, to, letter.len, 0, flags) };
            if let Ok(len) = usize::try_from(received) {
                return Ok(len);
            }
            retry(io::Error::last_os_error())?;
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.ours {
            remove(self.id);
        }
    }
}

/// A new queue under `key`.
fn get(key: libc::key_t) -> io::Result<libc::c_int> {
    let flags = libc::IPC_CREAT | libc::IPC_EXCL | MODE;
    // SAFETY:
    // - Takes numbers only.
    let id = unsafe { libc::msgget(key, flags) };
    if id < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(id)
}

fn remove(id: libc::c_int) {
    // SAFETY:
    // - To remove it, no buffer is needed.
    let removed = unsafe { libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
    // Another process may have removed it already, which is as good.
    let _ = removed;
}

/// Removes the queue under `key` if those who used it last are gone; whether it did.
fn forsaken(key: libc::key_t) -> bool {
    // SAFETY:
    // - Takes numbers only.
    let id = unsafe { libc::msgget(key, 0) };
    if id < 0 {
        return false;
    }
    // SAFETY:
    // - All bits zero are a valid `msqid_ds`.
    let mut state: libc::msqid_ds = unsafe { std::mem::zeroed() };
    // SAFETY:
    // - Room for one.
    let told = unsafe { libc::msgctl(id, libc::IPC_STAT, &raw mut state) };
    if told != 0 {
        return false;
    }
    let lives =
        |pid: libc::pid_t| pid != 0 && std::path::Path::new(&format!("/proc/{pid}")).exists();
    let used = [state.msg_lspid, state.msg_lrpid];
    let over = if used == [0, 0] {
        age(state.msg_ctime) > FORGOTTEN
    } else {
        !used.into_iter().any(lives)
    };
    if over {
        remove(id);
    }
    over
}

/// Seconds since `then`.
fn age(then: libc::time_t) -> libc::time_t {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |now| libc::time_t::try_from(now.as_secs()).unwrap_or(0));
    now - then
}

/// `Ok` if the call was interrupted and is to be made again.
fn retry(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::EINTR) => Ok(()),
        Some(libc::EAGAIN | libc::ENOMSG) => Err(io::ErrorKind::WouldBlock.into()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_goes_with_its_creator_and_is_opened_by_its_number() {
        let queue = Queue::create().unwrap();
        let mut letter = Letter::new(100);
        letter.text_mut().fill(7);
        Queue::open(queue.id()).send(&letter).unwrap();
        let mut received = Letter::new(100);
        assert_eq!(queue.receive(&mut received).unwrap(), 100);
        assert_eq!(received.text(), [7; 100]);
        let empty = queue.try_receive(&mut received).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        let id = queue.id();
        drop(queue);
        assert!(Queue::open(id).send(&letter).is_err());
    }

    #[test]
    fn what_dead_processes_left_is_removed() {
        // Only a child uses the queue, and is gone.
        let queue = Queue::create().unwrap();
        let text = format!("{}", queue.id());
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "sysv::tests::uses_the_queue_it_is_told",
                "--exact",
                "--ignored",
            ])
            .env("PORTOLAN_SYSV_CHILD", &text)
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
        let found = KEYS.into_iter().find(|&key| {
            // SAFETY:
            // - Takes numbers only.
            let id = unsafe { libc::msgget(key, 0) };
            id == queue.id()
        });
        assert!(forsaken(found.unwrap()));
        assert!(queue.try_send(&Letter::new(1)).is_err());
    }

    #[test]
    #[ignore = "the other process of the test above"]
    fn uses_the_queue_it_is_told() {
        if let Ok(id) = std::env::var("PORTOLAN_SYSV_CHILD") {
            let queue = Queue::open(id.parse().unwrap());
            queue.send(&Letter::new(8)).unwrap();
            queue.receive(&mut Letter::new(8)).unwrap();
        }
    }
}

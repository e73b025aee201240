//! Codes of errors, the thread's text of the last one, and what catches panics (C4).

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a call ended. `portolan_error_text` says more of the last one that failed.
///
/// The codes name causes, and one cause has one code whatever call it ends.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum portolan_status {
    /// It did what it says.
    PORTOLAN_OK = 0,
    /// The caller's: a handle is null, was freed or given away, is another kind's, or was never made.
    PORTOLAN_BAD_HANDLE = 1,
    /// The caller's: another call uses the handle, and only one may at a time.
    PORTOLAN_BUSY = 2,
    /// The caller's: a pointer is null, a number is none of those named, a text is not UTF-8.
    PORTOLAN_BAD_ARGUMENT = 3,
    /// The caller's: there is no such name for what was to be named.
    PORTOLAN_BAD_NAME = 4,
    /// The caller's: too long for what it was to be put into.
    PORTOLAN_TOO_LONG = 5,
    /// The caller's: it is of another kind: synchronous, raw, of another type.
    PORTOLAN_WRONG_KIND = 6,
    /// The caller's: it belongs to another domain.
    PORTOLAN_FOREIGN = 7,
    /// The caller's: this process may not.
    PORTOLAN_NOT_PERMITTED = 8,
    /// The caller's: it lies outside of the memory, or of what may be used of it.
    PORTOLAN_OUT_OF_BOUNDS = 9,
    /// The state's: nothing came before the deadline.
    PORTOLAN_TIMED_OUT = 10,
    /// The state's: the queue, or the channel, is full.
    PORTOLAN_FULL = 11,
    /// The state's: there is nothing of that name, or no such thing.
    PORTOLAN_NOT_FOUND = 12,
    /// The state's: something else has that name.
    PORTOLAN_NAME_TAKEN = 13,
    /// The state's: no memory within the domain's limit, or the machine's.
    PORTOLAN_OUT_OF_MEMORY = 14,
    /// The state's: as many of these as there can be.
    PORTOLAN_NO_ROOM = 15,
    /// The state's: it was closed, ended, or taken back by its owner.
    PORTOLAN_CLOSED = 16,
    /// The peer's: the port is gone, by its owner's act or death.
    PORTOLAN_DEAD_NAME = 17,
    /// The peer's: it ended, or was killed, before it answered.
    PORTOLAN_PEER_DIED = 18,
    /// The peer's: it dropped the request unanswered, or the reader.
    PORTOLAN_DROPPED = 19,
    /// The peer's: the node between is silent; it may come back.
    PORTOLAN_UNREACHABLE = 20,
    /// The peer's: it did not answer in time; it may be stopped.
    PORTOLAN_UNANSWERED = 21,
    /// The peer's: what it wrote is not what a program of this library writes.
    PORTOLAN_GARBLED = 22,
    /// The peer's: it speaks another version.
    PORTOLAN_OTHER_VERSION = 23,
    /// The state's: units were overwritten before they were read. Read on.
    PORTOLAN_MISSED = 24,
    /// The state's: the channel's writer has gone. Read on to wait for the next one.
    PORTOLAN_WRITER_GONE = 25,
    /// The caller's: this process was forked from a member, or has lost its connection.
    PORTOLAN_DISOWNED = 26,
    /// The system's: it has refused something; the text says what.
    PORTOLAN_SYSTEM = 27,
    /// The library's: a fault in it, which was caught. Free what the call was given, and report it.
    PORTOLAN_PANICKED = 28,
    /// None of these; the text says what.
    PORTOLAN_OTHER = 29,
}

/// What the thread is told of its last error.
enum Text {
    Fixed(&'static CStr),
    Own(CString),
}

thread_local! {
    static TEXT: RefCell<Text> = const { RefCell::new(Text::Fixed(c"no call of this thread has failed")) };
}

/// What the last call of this thread that failed has to say: who is to blame, with which values,
/// and what to do.
///
/// Threads: any.
/// Owns: the library; the text is there until the thread's next call of this library.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_error_text() -> *const c_char {
    TEXT.try_with(|text| match &*text.borrow() {
        Text::Fixed(text) => text.as_ptr(),
        Text::Own(text) => text.as_ptr(),
    })
    // The thread is ending.
    .unwrap_or(c"".as_ptr())
}

/// The version of the library, as in "0.1.0".
///
/// Threads: any.
/// Owns: the library; the text is there for good.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Keeps the text for this thread; the status.
#[cold]
#[inline(never)]
pub(crate) fn fail(status: portolan_status, text: fmt::Arguments<'_>) -> portolan_status {
    let mut bytes = text.to_string().into_bytes();
    // What quotes a name may quote a zero.
    bytes.retain(|byte| *byte != 0);
    keep(CString::new(bytes).map_or(Text::Fixed(c""), Text::Own));
    status
}

/// As [`fail`], of what happens often: nothing is formatted.
#[cold]
pub(crate) fn fail_fixed(status: portolan_status, text: &'static CStr) -> portolan_status {
    keep(Text::Fixed(text));
    status
}

fn keep(text: Text) {
    // Fails only while the thread ends.
    let _ = TEXT.try_with(|kept| *kept.borrow_mut() = text);
}

/// What an entry point does: catches what must not leave it (C4).
#[inline(always)]
pub(crate) fn enter(work: impl FnOnce() -> Result<(), portolan_status>) -> portolan_status {
    enter_status(|| match work() {
        Ok(()) => portolan_status::PORTOLAN_OK,
        Err(status) => status,
    })
}

/// As [`enter`], of work that ends in its status: a few instructions less.
#[inline(always)]
pub(crate) fn enter_status(work: impl FnOnce() -> portolan_status) -> portolan_status {
    // What a call leaves half done is what its handle stands for, and later calls find it so.
    // Where nothing panics this takes no instructions.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(status) => status,
        Err(panic) => panicked(&*panic),
    }
}

#[cold]
#[inline(never)]
fn panicked(panic: &(dyn std::any::Any + Send)) -> portolan_status {
    let said = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a word");
    fail(
        portolan_status::PORTOLAN_PANICKED,
        format_args!("a fault in Portolan was caught: {said}; please report it"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        // SAFETY:
        // - Ended by a zero, and there until this thread's next call.
        let text = unsafe { CStr::from_ptr(portolan_error_text()) };
        text.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_is_a_status_and_its_text_is_the_threads() {
        let status = enter(|| panic!("at {}", 7));
        assert_eq!(status, portolan_status::PORTOLAN_PANICKED);
        assert!(text().contains("at 7"), "{}", text());
        std::thread::spawn(|| assert!(text().contains("no call of this thread")))
            .join()
            .unwrap();
        assert_eq!(enter(|| Ok(())), portolan_status::PORTOLAN_OK);
    }

    #[test]
    fn a_text_that_quotes_a_zero_is_whole() {
        fail(portolan_status::PORTOLAN_BAD_NAME, format_args!("a\0b"));
        assert_eq!(text(), "ab");
    }
}

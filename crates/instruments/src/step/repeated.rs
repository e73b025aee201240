//! Runs a stopped thread to the end of an instruction that repeats itself, by a breakpoint behind it: the
//! thread would stop at each turn otherwise, 65,536 times in a copy of 64 KiB.
//!
//! The breakpoint is the processor's: no other thread meets it, and no code is changed.

use std::mem::offset_of;
use std::ptr::{null_mut, without_provenance_mut};

/// The longest instruction has 15 bytes.
const WORDS: usize = 2;
/// Of the register that enables breakpoints: the first one, in this thread, where an instruction is about to be
/// executed.
const FIRST: usize = 1;

/// The address behind the instruction at `at` of a stopped thread, if that is one that repeats itself.
pub(super) fn behind(thread: libc::pid_t, at: i64) -> Option<i64> {
    let at = usize::try_from(at).ok()?;
    let mut code = [0; WORDS * size_of::<libc::c_long>()];
    for (nth, word) in code.chunks_exact_mut(size_of::<libc::c_long>()).enumerate() {
        let place = at.checked_add(nth * size_of::<libc::c_long>())?;
        // What a failure looks like is no such instruction.
        word.copy_from_slice(&peek(libc::PTRACE_PEEKTEXT, thread, place).to_le_bytes());
    }
    i64::try_from(at.checked_add(length(&code)?)?).ok()
}

/// How long a string instruction with a prefix that repeats it is, if code begins with one.
fn length(code: &[u8]) -> Option<usize> {
    let is_prefix = |byte: &&u8| {
        let is_segment = matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65);
        is_segment || matches!(byte, 0x40..=0x4f | 0x66 | 0x67 | 0xf2 | 0xf3)
    };
    let prefixes = code.iter().take_while(is_prefix).count();
    let (prefixes, rest) = code.split_at(prefixes);
    let repeats = prefixes.iter().any(|byte| matches!(byte, 0xf2 | 0xf3));
    let is_string = matches!(rest.first()?, 0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf);
    (repeats && is_string).then_some(prefixes.len() + 1)
}

/// Has a stopped thread stop before the instruction at `at`, or no more; whether that is so now.
pub(super) fn stops_at(thread: libc::pid_t, at: Option<i64>) -> bool {
    let address = at.and_then(|at| usize::try_from(at).ok());
    // An address is taken only while nothing stops there.
    poke(thread, 7, 0)
        && address.is_none_or(|address| poke(thread, 0, address) && poke(thread, 7, FIRST))
}

/// The address of the next instruction of a thread that has stopped.
pub(super) fn next(thread: libc::pid_t) -> Option<i64> {
    let place = offset_of!(libc::user, regs) + offset_of!(libc::user_regs_struct, rip);
    // What a failure looks like is no address.
    let found = peek(libc::PTRACE_PEEKUSER, thread, place);
    (found != -1).then_some(found)
}

/// A word of a stopped thread.
fn peek(what: libc::c_uint, thread: libc::pid_t, place: usize) -> i64 {
    let none = null_mut::<libc::c_void>();
    // SAFETY:
    // - Reads a word of a thread that is ours to trace, and no memory of ours.
    unsafe {
        libc::ptrace(
            what,
            thread,
            without_provenance_mut::<libc::c_void>(place),
            none,
        )
    }
}

/// Sets a debug register of a stopped thread; whether the kernel takes that.
fn poke(thread: libc::pid_t, register: usize, value: usize) -> bool {
    let place = offset_of!(libc::user, u_debugreg) + register * size_of::<libc::c_ulonglong>();
    let (place, value) = (
        without_provenance_mut::<libc::c_void>(place),
        without_provenance_mut::<libc::c_void>(value),
    );
    // SAFETY:
    // - Writes a register of a thread that is ours to trace, which stops it somewhere and changes nothing it does.
    unsafe { libc::ptrace(libc::PTRACE_POKEUSER, thread, place, value) == 0 }
}

#[cfg(test)]
mod tests {
    use super::length;

    #[test]
    fn string_instructions_that_repeat_themselves_are_told_from_others() {
        let cases: [(&[u8], Option<usize>); 8] = [
            (&[0xf3, 0xa4, 0x90], Some(2)),
            (&[0xf3, 0x48, 0xa5], Some(3)),
            (&[0xf2, 0xae], Some(2)),
            (&[0x66, 0xf3, 0xab], Some(3)),
            // Not repeated; a pause; a store of the vector unit; a jump to itself.
            (&[0xa4, 0xf3], None),
            (&[0xf3, 0x90], None),
            (&[0xf3, 0x0f, 0x7f, 0x07], None),
            (&[0xeb, 0xfe], None),
        ];
        for (code, expected) in cases {
            assert_eq!(length(code), expected, "{code:x?}");
        }
        assert_eq!(length(&[0xf3; 16]), None);
    }
}

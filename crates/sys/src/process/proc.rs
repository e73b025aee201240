//! Reads `/proc` about a process.

/// When the process started, in clock ticks since boot; `None` if there is none.
///
/// Together with the process id this names a process for ever.
///
/// # Examples
///
/// ```
/// assert!(portolan_sys::process::start_time(std::process::id()).is_some());
/// ```
pub fn start_time(pid: u32) -> Option<u64> {
    start_time_in(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The short name of the process's program; `None` if there is no such process.
pub fn comm(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

/// Whether a signal or a debugger has stopped the process, as far as can be told.
///
/// ```
/// assert!(!portolan_sys::process::is_stopped(std::process::id()));
/// ```
pub fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    matches!(field(&stat, 3), Some("T" | "t"))
}

/// Whether the process's first thread has begun to end; `None` if there is no such process, or it
/// cannot be told.
pub(super) fn is_ending(pid: u32) -> Option<bool> {
    is_ending_in(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22 of `stat`.
fn start_time_in(stat: &[u8]) -> Option<u64> {
    field(stat, 22)?.parse().ok()
}

/// Field 9 of `stat`, the flags.
fn is_ending_in(stat: &[u8]) -> Option<bool> {
    /// `PF_EXITING`.
    const ENDING: u32 = 4;
    Some(field(stat, 9)?.parse::<u32>().ok()? & ENDING != 0)
}

/// A field of `stat` behind the second. That one, the program's name in parentheses, may itself
/// hold spaces and parentheses, so the fields are counted from its end.
fn field(stat: &[u8], number: usize) -> Option<&str> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(number - 3)
}

#[cfg(test)]
mod tests {
    use super::{is_ending_in, start_time_in};

    #[test]
    fn a_program_may_call_itself_anything() {
        let stat = b"7 (a) b (c 1 2) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 777 9 9";
        assert_eq!(start_time_in(stat), Some(777));
        assert_eq!(start_time_in(b"7 (a"), None);
        assert_eq!(start_time_in(b"7 (a) S 1"), None);
        assert_eq!(is_ending_in(stat), Some(false));
        assert_eq!(is_ending_in(b"7 () a) Z 1 7 7 0 -1 4194564 1"), Some(true));
        assert_eq!(is_ending_in(b"7 (a"), None);
    }
}

//! What `/proc` says about a process.

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

/// Field 22 of `stat`. Field 2, the program's name in parentheses, may itself hold
/// spaces and parentheses, so the fields are counted from the last one.
fn start_time_in(stat: &[u8]) -> Option<u64> {
    /// Fields between the name and the start time.
    const BETWEEN: usize = 19;
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(BETWEEN)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::start_time_in;

    #[test]
    fn a_program_may_call_itself_anything() {
        let stat = b"7 (a) b (c 1 2) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 777 9 9";
        assert_eq!(start_time_in(stat), Some(777));
        assert_eq!(start_time_in(b"7 (a"), None);
        assert_eq!(start_time_in(b"7 (a) S 1"), None);
    }
}

//! Lists the abstract names that sockets of this network namespace have.

use std::collections::BTreeSet;
use std::io;

/// The abstract names in this network namespace, without the leading zero byte. Other zero bytes
/// in them read as `@`.
///
/// Any process may give its socket any name, so a name says nothing of who has it.
///
/// # Errors
///
/// Those of reading `/proc/thread-self/net/unix`.
///
/// # Examples
///
/// ```
/// use portolan_sys::socket::{self, Address, abstract_names};
/// let name = format!("example-listed-{}", std::process::id()).into_bytes();
/// let socket = socket::unbound()?;
/// socket::reserve(&socket, &Address::Abstract(name.clone()))?;
/// assert!(abstract_names()?.contains(&name));
/// drop(socket);
/// assert!(!abstract_names()?.contains(&name));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn abstract_names() -> io::Result<BTreeSet<Vec<u8>>> {
    let listing = std::fs::read("/proc/thread-self/net/unix")?;
    Ok(names_in(&listing, b" @"))
}

/// The absolute paths that sockets in this network namespace were bound to, as their owners said them:
/// a file that is not there any more, or lies elsewhere since, counts too.
///
/// # Errors
///
/// Those of reading `/proc/thread-self/net/unix`.
///
/// # Examples
///
/// ```
/// use portolan_sys::socket::bound_paths;
/// use std::os::unix::{ffi::OsStrExt, net::UnixListener};
/// let path = std::env::temp_dir().join(format!("example-bound-{}", std::process::id()));
/// let listener = UnixListener::bind(&path)?;
/// assert!(bound_paths()?.contains(path.as_os_str().as_bytes()));
/// drop(listener);
/// assert!(!bound_paths()?.contains(path.as_os_str().as_bytes()));
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn bound_paths() -> io::Result<BTreeSet<Vec<u8>>> {
    let listing = std::fs::read("/proc/thread-self/net/unix")?;
    let rests = names_in(&listing, b" /");
    Ok(rests
        .iter()
        .map(|rest| [b"/", &rest[..]].concat())
        .collect())
}

/// What follows these two bytes, where they are the first of a socket's name.
fn names_in(listing: &[u8], first: &[u8; 2]) -> BTreeSet<Vec<u8>> {
    let name = |line: &[u8]| {
        let mut rest = line;
        // Num, RefCount, Protocol, Flags, Type, St, Inode: then a blank, and the name.
        for _ in 0..7 {
            rest = rest.trim_ascii_start();
            let end = rest.iter().position(|byte| *byte == b' ')?;
            rest = &rest[end..];
        }
        Some(rest.strip_prefix(first)?.to_vec())
    };
    let lines = listing.split(|byte| *byte == b'\n');
    lines.filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_once_each_whatever_bytes_they_are() {
        let listing = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000: 00000002 00000000 00010000 0005 01 1 @portolan/1000/demo\n\
            0000: 00000003 00000000 00000000 0005 03 2 @portolan/1000/demo\n\
            0000: 00000002 00000000 00010000 0005 01 3 @portolan/0/two words\n\
            0000: 00000002 00000000 00010000 0005 01 30 @x @portolan/0/within\n\
            0000: 00000002 00000000 00010000 0005 01    31\n\
            0000: 00000002 00000000 00010000 0005 01 32 @\xff\xfe\n\
            0000: 00000002 00000000 00010000 0001 01 4 /run/other\n";
        let names = [
            &b"portolan/0/two words"[..],
            b"portolan/1000/demo",
            b"x @portolan/0/within",
            b"\xff\xfe",
        ];
        assert_eq!(names_in(listing, b" @"), names.map(<[u8]>::to_vec).into());
        assert_eq!(names_in(listing, b" /"), [b"run/other".to_vec()].into());
    }
}

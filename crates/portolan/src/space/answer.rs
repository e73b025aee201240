//! Reads the answer at a domain's socket, and checks how much of it a newcomer may believe.

use super::descriptor::Descriptor;
use super::{JoinError, OVERFLOW_ID};
use portolan_abi::FORMAT_VERSION;
use portolan_abi::codec::DecodeError;
use portolan_abi::hello::{Answer, Reason, Refusal, Welcome};
use portolan_abi::region::{Geometry, MAGIC};
use portolan_proto::handshake::Garbled;
use portolan_sys::memory;
use portolan_sys::socket::{self, Address, Holder, Peer};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// What a host's refusal means.
pub(crate) fn refused(refusal: Refusal, address: &Address, owner: u32) -> JoinError {
    let Refusal {
        version,
        why,
        value,
    } = refusal;
    match why {
        Reason::Version => JoinError::OtherVersion {
            theirs: version,
            ours: FORMAT_VERSION,
        },
        Reason::Permission => JoinError::NotPermitted { user: value, owner },
        Reason::Full => JoinError::Full { spaces: value },
        Reason::Descriptors => JoinError::HostDescriptors {
            host: socket::holder(address),
        },
        Reason::Proc => JoinError::HostProc {
            host: socket::holder(address),
        },
        Reason::Namespace => JoinError::OtherNamespace,
        // The last two are for clients, who do not come here.
        Reason::Garbled | Reason::Stranger | Reason::Token | Reason::Busy => {
            garbled("greeting", value, 0)
        }
    }
}

/// What it means that a host's answer is none.
pub(crate) fn no_answer(why: Garbled) -> JoinError {
    let (what, found, wanted) = match why {
        Garbled::Descriptors { found, wanted } => ("number of descriptors", found, wanted),
        Garbled::Record(DecodeError::Length { found, wanted }) => ("answer", found, wanted),
        Garbled::Record(DecodeError::Magic { found, wanted }) => {
            return garbled("answer's magic number", found.into(), wanted.into());
        }
        Garbled::Record(_) | Garbled::Truncated => ("answer", 0, Answer::BYTES),
    };
    garbled(what, found as u64, wanted as u64)
}

/// Refuses a socket at which another user than the domain's listens.
pub(crate) fn check_owner(
    connection: &Descriptor,
    address: &Address,
    owner: u32,
) -> Result<(), JoinError> {
    let Peer {
        uid: found, pid, ..
    } = socket::peer(connection).map_err(JoinError::socket)?;
    if found == owner && found != OVERFLOW_ID {
        return Ok(());
    }
    Err(JoinError::Impostor {
        owner,
        found,
        // Of another user's process we may not list the descriptors; the kernel has told its id.
        holder: socket::holder(address)
            .or_else(|| Holder::of(pid).filter(|holder| holder.user == Some(found))),
    })
}

pub(crate) fn garbled(what: &'static str, found: u64, wanted: u64) -> JoinError {
    JoinError::Garbled {
        what,
        found,
        wanted,
    }
}

/// Checks a region that the host has sent.
pub(crate) fn check(file: OwnedFd, welcome: &Welcome) -> Result<(OwnedFd, Geometry), JoinError> {
    memory::verify(&file, welcome.len).map_err(JoinError::NotARegion)?;
    let file = File::from(file);
    let [magic, version, size, base] =
        head(&file).map_err(|e| JoinError::system("read the region's header", e))?;
    let ours = u64::from(FORMAT_VERSION);
    let geometry = Geometry::new(size);
    let len = geometry.map_or(0, |g| g.len);
    let checks = [
        ("magic number", magic, MAGIC),
        ("version", version, ours),
        ("length", len, welcome.len),
        ("base", base, welcome.base),
    ];
    if let Some((what, found, wanted)) = checks.into_iter().find(|(_, f, w)| f != w) {
        return Err(garbled(what, found, wanted));
    }
    let Some(geometry) = geometry else {
        return Err(garbled("size", size, 1));
    };
    Ok((file.into(), geometry))
}

/// The first words of a region's header, read and not mapped.
fn head(file: &File) -> io::Result<[u64; 4]> {
    let mut words = [0; 4];
    for (i, word) in words.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, i as u64 * 8)?;
        *word = u64::from_ne_bytes(bytes);
    }
    Ok(words)
}

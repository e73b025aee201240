//! Sockets in the file system: found stale when a node starts, removed when it ends in good order.
//!
//! A node that is killed leaves its sockets' files behind. Nothing listens there, so a connection is
//! refused, and the next node removes the file. Where something listens, the file is not touched.

use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::{NodeError, Result};

/// A socket's file, which goes when this is dropped, if it is still the same one.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Its device and inode.
    identity: Option<(u64, u64)>,
}

/// Removes a socket's file where nothing listens. `connect` tries to connect there.
///
/// # Errors
///
/// [`NodeError::Listening`]: something does, or it is no socket.
pub(super) fn clear(path: &Path, connect: impl FnOnce() -> io::Result<()>) -> Result<()> {
    let failed = || NodeError::file("cannot listen at", path);
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => {
            let path = path.to_owned();
            return Err(NodeError::Listening { path });
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed()(error)),
    }
    match connect() {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        // Another node of this machine, with another state directory.
        Ok(()) | Err(_) => {
            let path = path.to_owned();
            return Err(NodeError::Listening { path });
        }
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed()(error)),
        _ => Ok(()),
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl SocketFile {
    /// The file of a socket that this node has bound there, or was given.
    pub(super) fn at(path: PathBuf) -> Self {
        let metadata = std::fs::symlink_metadata(&path);
        let identity = metadata.ok().as_ref().map(identity);
        Self { path, identity }
    }

    /// It stays: another process listens there now.
    pub(super) fn leave(&mut self) {
        self.identity = None;
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let there = std::fs::symlink_metadata(&self.path);
        if there.is_ok_and(|metadata| Some(identity(&metadata)) == self.identity) {
            // It may be gone by now, with its directory.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

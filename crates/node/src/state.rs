//! The state directory: what a node keeps over its ends.
//!
//! ```text
//! node.toml           what it is to do
//! node.key            its private key, 0600          node.crt       its certificate
//! authority.key       the authority's, 0600, on nodes that let others in
//! authority.crt       whom it believes             statements     what the authority has stated
//! incarnation         how often it was started       lock           held while it runs
//! invitations/ID      0600, good once                forgotten      nodes that it refuses
//! audit.log           who came, and who did not      control.sock   of the running node
//! zenoh*.sock         of its directory, if that is Zenoh
//! ```
//!
//! # Invariants
//!
//! - **S1** A file has its old contents or its new ones, whole, whatever dies in the middle, the
//!   machine included; and a call that has returned has made the new ones last.
//! - **S2** A key that others may read is not used, nor a directory in which others may replace it.
//! - **S3** One process at a time runs as the node of a directory. An incarnation is used once, or goes on in
//!   the process that takes over from another one (W1).

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use portolan_transport::NodeId;
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::config::Config;
use crate::{NodeError, Result};

/// Bytes of a file that is read, at most: none comes near.
const LONGEST: u64 = 1 << 20;

/// A state directory.
#[derive(Clone, Debug)]
pub struct State {
    path: PathBuf,
}

/// The right to run as the node of a directory, until it is dropped (S3).
#[derive(Debug)]
pub struct Running {
    _lock: File,
    /// How often the node was started, this time included.
    pub incarnation: u64,
}

impl State {
    /// The directory at `path`, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// [`NodeError::File`].
    pub fn at(path: &Path) -> Result<Self> {
        let state = Self::of(path);
        state.make()?;
        Ok(state)
    }

    /// The directory at `path`, which is made when the first file is [written](Self::write): a command
    /// that only looks leaves nothing behind.
    pub fn of(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    fn make(&self) -> Result<()> {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(&self.path);
        made.map_err(NodeError::file("cannot make the directory", &self.path))?;
        self.check()
    }

    /// Looks whether the directory, if it is there, is this user's, and others may put nothing into
    /// it (S2).
    ///
    /// # Errors
    ///
    /// [`NodeError::Writable`], [`NodeError::Foreign`].
    pub fn check(&self) -> Result<()> {
        let path = self.path.clone();
        let metadata = match std::fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(NodeError::file("cannot look at", &path)(error)),
        };
        let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
        if is_strange(owner) {
            return Err(NodeError::Foreign { path, owner });
        }
        if mode & 0o022 != 0 {
            return Err(NodeError::Writable { path, mode });
        }
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file of it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether a file is there.
    pub fn has(&self, name: &str) -> bool {
        self.file(name).exists()
    }

    /// Reads a file; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`NodeError::File`], [`NodeError::Damaged`].
    pub fn read(&self, name: &str) -> Result<Option<String>> {
        let path = self.file(name);
        match open(&path) {
            Ok(file) => read_text(&file, &path).map(Some),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a key, which only its owner may read (S2).
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and [`NodeError::Readable`], [`NodeError::Owned`].
    pub fn read_key(&self, name: &str) -> Result<Option<String>> {
        let path = self.file(name);
        match open(&path) {
            Ok(file) => read_key_of(&file, &path).map(Some),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Why a file is not there that a node has: there is no node yet, or it has lost the file.
    pub(crate) fn missing(&self, name: &str) -> NodeError {
        match self.has("incarnation") || self.has("node.crt") {
            true => NodeError::Damaged {
                path: self.file(name),
                what: "it is missing, and there was a node in this directory".to_owned(),
            },
            false => NodeError::NotMade {
                path: self.path.clone(),
            },
        }
    }

    /// Writes a file whole (S1), for its owner alone.
    ///
    /// # Errors
    ///
    /// [`NodeError::NoRoom`], [`NodeError::File`]; then the old contents are there still.
    pub fn write(&self, name: &str, contents: &str) -> Result<()> {
        self.make()?;
        let path = self.file(name);
        let new = self.file(&format!("{name}.new"));
        let written = self.write_new(&new, contents).and_then(|()| {
            std::fs::rename(&new, &path).map_err(NodeError::file("cannot rename to", &path))
        });
        if written.is_err() {
            // It would take room that others need.
            let _ = std::fs::remove_file(&new);
        }
        written?;
        sync_folder(path.parent().unwrap_or(&self.path))
    }

    /// Puts a file in the place of another one.
    ///
    /// # Errors
    ///
    /// [`NodeError::File`].
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let path = self.file(to);
        std::fs::rename(self.file(from), &path)
            .map_err(NodeError::file("cannot rename to", &path))?;
        sync_folder(&self.path)
    }

    fn write_new(&self, path: &Path, contents: &str) -> Result<()> {
        let failed = || NodeError::file("cannot write", path);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.custom_flags(AT_ONCE);
        let mut file = options.open(path).map_err(failed())?;
        // One that was left behind may have other permissions.
        file.set_permissions(Permissions::from_mode(0o600))
            .map_err(failed())?;
        file.write_all(contents.as_bytes()).map_err(failed())?;
        file.sync_all().map_err(failed())
    }

    /// Runs as the node of this directory from now on, as its next incarnation.
    ///
    /// # Errors
    ///
    /// [`NodeError::InUse`]: another process does. [`NodeError::Damaged`]: the number cannot be
    /// read; [`NodeError::NoRoom`]: or not be written.
    pub fn run(&self) -> Result<Running> {
        let lock = self.lock()?;
        let incarnation = self.incarnation()?.checked_add(1);
        let incarnation = incarnation.ok_or_else(|| NodeError::Damaged {
            path: self.file("incarnation"),
            what: "its number is the last one that there is".to_owned(),
        })?;
        self.write("incarnation", &format!("{incarnation}\n"))?;
        Ok(Running {
            _lock: lock,
            incarnation,
        })
    }

    /// Goes on as the node of this directory in the incarnation of the process of before, which has let go of the
    /// lock.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`NodeError::Damaged`]: it has another incarnation by now.
    pub fn run_on(&self, incarnation: u64) -> Result<Running> {
        let lock = self.lock()?;
        let last = self.incarnation()?;
        if last != incarnation {
            return Err(NodeError::Damaged {
                path: self.file("incarnation"),
                what: format!("its number is {last}, and the node that ran was {incarnation}"),
            });
        }
        Ok(Running {
            _lock: lock,
            incarnation,
        })
    }

    /// The lock of the directory, which the kernel takes back when its holder ends.
    ///
    /// # Errors
    ///
    /// [`NodeError::InUse`].
    pub fn lock(&self) -> Result<File> {
        let path = self.file("lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options
            .custom_flags(AT_ONCE)
            .open(&path)
            .map_err(NodeError::file("cannot open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(NodeError::InUse {
                path: self.path.clone(),
            }),
            Err(error) => Err(NodeError::file("cannot lock", &path)(error.into())),
        }
    }

    /// How often the node was started.
    fn incarnation(&self) -> Result<u64> {
        let Some(text) = self.read("incarnation")? else {
            return Ok(0);
        };
        text.trim().parse().map_err(|_| NodeError::Damaged {
            path: self.file("incarnation"),
            what: "it should hold one number".to_owned(),
        })
    }

    /// What node.toml says.
    ///
    /// # Errors
    ///
    /// [`NodeError::NotMade`], [`NodeError::Damaged`], [`NodeError::Config`].
    pub fn config(&self) -> Result<Config> {
        let text = self.read("node.toml")?;
        let text = text.ok_or_else(|| self.missing("node.toml"))?;
        Ok(Config::read(&text, &self.file("node.toml"))?)
    }

    /// The nodes that this one refuses for itself, whatever the authority states.
    ///
    /// # Errors
    ///
    /// [`NodeError::Damaged`].
    pub fn forgotten(&self) -> Result<Vec<NodeId>> {
        let text = self.read("forgotten")?.unwrap_or_default();
        let ids = text.lines().map(|line| {
            line.parse().map_err(|_| NodeError::Damaged {
                path: self.file("forgotten"),
                what: format!("{line:?} is no node id"),
            })
        });
        ids.collect()
    }

    /// Refuses one more from now on.
    ///
    /// # Errors
    ///
    /// As [`forgotten`](Self::forgotten) and [`write`](Self::write).
    pub fn forget(&self, node: NodeId) -> Result<()> {
        let mut nodes = self.forgotten()?;
        if nodes.contains(&node) {
            return Ok(());
        }
        nodes.push(node);
        let lines: String = nodes.iter().map(|node| format!("{node}\n")).collect();
        self.write("forgotten", &lines)
    }
}

/// Reads the file of a key, which only its owner may read, and no other user may own (S2).
///
/// # Errors
///
/// [`NodeError::File`], [`NodeError::Readable`], [`NodeError::Owned`], [`NodeError::Damaged`].
pub fn read_key_at(path: &Path) -> Result<String> {
    // It may be a pipe: a shell's `<(..)`.
    let file = File::open(path).map_err(NodeError::file("cannot open", path))?;
    read_key_of(&file, path)
}

/// With this flag the opening of a named pipe does not wait for somebody at its other end.
pub(crate) const AT_ONCE: i32 = OFlags::NONBLOCK.bits().cast_signed();

/// Opens a file of the directory, which must be one: a pipe would keep its reader waiting.
fn open(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(AT_ONCE).open(path);
    let file = file.map_err(NodeError::file("cannot open", path))?;
    let metadata = file.metadata();
    let metadata = metadata.map_err(NodeError::file("cannot look at", path))?;
    match metadata.is_file() {
        true => Ok(file),
        false => Err(NodeError::Damaged {
            path: path.to_owned(),
            what: "it is no file, but a directory, a pipe or a device".to_owned(),
        }),
    }
}

fn is_absent(error: &NodeError) -> bool {
    matches!(error, NodeError::File { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

/// Another user than root, who reads and writes what it likes, and than this process's.
fn is_strange(owner: u32) -> bool {
    owner != 0 && owner != rustix::process::geteuid().as_raw()
}

fn read_key_of(file: &File, path: &Path) -> Result<String> {
    // Of the file that is open, so that none is put in its place meanwhile.
    let metadata = file
        .metadata()
        .map_err(NodeError::file("cannot look at", path))?;
    let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
    let path = path.to_owned();
    if mode & 0o077 != 0 {
        return Err(NodeError::Readable { path, mode });
    }
    if is_strange(owner) {
        return Err(NodeError::Owned { path, owner });
    }
    read_text(file, &path)
}

fn read_text(file: &File, path: &Path) -> Result<String> {
    let mut text = String::new();
    match file.take(LONGEST).read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(NodeError::Damaged {
            path: path.to_owned(),
            what: "it is not text".to_owned(),
        }),
        Err(error) => Err(NodeError::file("cannot read", path)(error)),
    }
}

/// Makes the names in a directory last.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .map_err(NodeError::file("cannot sync", path))
}

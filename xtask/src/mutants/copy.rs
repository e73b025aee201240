//! Copies the workspace, and changes the copy. The working tree is never written to.

use super::Failure;
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// See the module. It is kept for the next run, which then has little to build.
pub(super) struct Copy {
    root: PathBuf,
    target: PathBuf,
    /// One run at a time; the kernel lets go of it, whatever becomes of us.
    _lock: File,
}

impl Copy {
    /// Makes the copy in `room` the same as the workspace at `root`.
    pub(super) fn make(root: &Path, room: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(room)?;
        let room = room.canonicalize()?;
        let lock = File::create(room.join("lock"))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(format!("another run is at work in {}", room.display()).into());
        }
        let copy = Self {
            root: room.join("workspace"),
            target: room.join("build"),
            _lock: lock,
        };
        alike(root, &copy.root)?;
        Ok(copy)
    }

    /// Where it is.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Where its builds go.
    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// Replaces what stands once in a file; the text that it had.
    pub(super) fn change(&self, file: &str, find: &str, replace: &str) -> Result<String, Failure> {
        let path = self.root.join(file);
        let text = fs::read_to_string(&path)?;
        occurs_once(&text, find).map_err(|n| format!("{file} has it {n} times: {find}"))?;
        fs::write(&path, text.replacen(find, replace, 1))?;
        Ok(text)
    }

    /// Puts a file back.
    pub(super) fn restore(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.root.join(file), text)
    }
}

/// Whether `find` stands once in `text`; else how often.
pub(super) fn occurs_once(text: &str, find: &str) -> Result<(), usize> {
    match text.matches(find).count() {
        1 => Ok(()),
        count => Err(count),
    }
}

/// Makes folder `to` the same as `from`, but for build directories and what is hidden. Files
/// that are the same already are not written, so that nothing is built again for them.
fn alike(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if name == "target" || name == ".git" {
            continue;
        }
        let there = to.join(&name);
        if kind.is_dir() {
            alike(&entry.path(), &there)?;
        } else if kind.is_file() {
            let bytes = fs::read(entry.path())?;
            if fs::read(&there).ok().as_ref() != Some(&bytes) {
                fs::write(&there, bytes)?;
            }
        }
        names.insert(name);
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if names.contains(&entry.file_name()) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_changed_and_put_back_and_its_original_never() {
        let room = std::env::temp_dir().join(format!("portolan-mutants-{}", std::process::id()));
        let (from, to) = (room.join("from"), room.join("to"));
        for folder in ["src", "target", "old"] {
            fs::create_dir_all(from.join(folder)).unwrap();
            fs::write(from.join(folder).join("a.rs"), "one two two").unwrap();
        }
        let copy = Copy::make(&from, &to).unwrap();
        assert!(copy.root().join("old/a.rs").exists());
        assert!(!copy.root().join("target").exists());
        assert!(Copy::make(&from, &to).is_err(), "one run at a time");
        for stale in ["two", "three"] {
            assert!(copy.change("src/a.rs", stale, "").is_err());
        }
        let was = copy.change("src/a.rs", "one", "no").unwrap();
        let text = |root: &Path| fs::read_to_string(root.join("src/a.rs")).unwrap();
        assert_eq!(text(copy.root()), "no two two");
        copy.restore("src/a.rs", &was).unwrap();
        assert_eq!((text(copy.root()), text(&from)), (was.clone(), was));
        drop(copy);
        fs::remove_dir_all(from.join("old")).unwrap();
        assert!(!Copy::make(&from, &to).unwrap().root().join("old").exists());
        fs::remove_dir_all(&room).unwrap();
    }
}

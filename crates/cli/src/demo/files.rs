//! Reads the demo's input, writes its output, and computes their digests.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, MemfdFlags, Mode, OFlags, linkat, memfd_create, open};

use crate::error::{CliError, Result};

/// Bytes of the generated input.
const GENERATED: u64 = 256 << 20;
/// Bytes that are read or made at a time.
const STEP: usize = 1 << 20;

/// What is sent.
#[derive(Debug)]
pub(crate) struct Input {
    name: String,
    file: File,
    len: u64,
}

impl Input {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let refused = |source| CliError::Input {
            path: path.into(),
            source,
        };
        let found = fs::metadata(path).map_err(refused)?;
        if !found.is_file() {
            return Err(CliError::NotAFile { path: path.into() });
        }
        let file = File::open(path).map_err(refused)?;
        Ok(Self {
            name: path.display().to_string(),
            file,
            len: found.len(),
        })
    }

    /// The same bytes every time, in memory, so that no disk is measured.
    pub(crate) fn generate() -> Result<Self> {
        let doing = "making the demo's own input in memory";
        let memory = memfd_create("portolan-demo-input", MemfdFlags::CLOEXEC)
            .map_err(CliError::system(doing))?;
        let mut file = File::from(memory);
        let mut bytes = vec![0; STEP];
        let mut source = blake3::Hasher::new()
            .update(b"portolan demo")
            .finalize_xof();
        let bar = super::progress(GENERATED, "generating input");
        for _ in 0..GENERATED / STEP as u64 {
            source.fill(&mut bytes);
            file.write_all(&bytes).map_err(CliError::system(doing))?;
            bar.inc(STEP as u64);
        }
        bar.finish_and_clear();
        Ok(Self {
            name: "generated data".into(),
            file,
            len: GENERATED,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Another open file of the same input, at its start, for the reader.
    pub(crate) fn reopen(&self) -> Result<File> {
        reopen(&self.file, OFlags::RDONLY)
    }
}

/// A file without a name, until it is kept (D1). If we die it is gone.
#[derive(Debug)]
pub(crate) struct Output {
    file: File,
    directory: PathBuf,
}

impl Output {
    /// Where the file system has no nameless files, a name exists for an instant.
    pub(crate) fn create(directory: &Path) -> Result<Self> {
        let refused = |source: io::Error| CliError::Output {
            path: directory.into(),
            source,
        };
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = match open(directory, flags, Mode::from_raw_mode(0o666)) {
            Ok(descriptor) => File::from(descriptor),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {
                let path = hidden_name(directory);
                let file = File::options()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .open(&path)
                    .map_err(refused)?;
                fs::remove_file(&path).map_err(refused)?;
                file
            }
            Err(error) => return Err(refused(error.into())),
        };
        Ok(Self {
            file,
            directory: directory.into(),
        })
    }

    /// Writes the complement of `bytes`.
    fn spoil(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        let written = self.file.write_all_at(bytes, at);
        written.map_err(|source| CliError::Output {
            path: self.directory.clone(),
            source,
        })
    }

    /// Another open file of the same output, at its start, for the writer.
    pub(crate) fn reopen(&self) -> Result<File> {
        reopen(&self.file, OFlags::WRONLY)
    }

    /// Gives the file its name; replaces what was there.
    pub(crate) fn keep(self, path: &Path) -> Result<()> {
        let refused = |source: io::Error| CliError::Output {
            path: path.into(),
            source,
        };
        let directory = parent(path);
        let temporary = hidden_name(&directory);
        // A link cannot replace, a rename can.
        let linked = linkat(
            CWD,
            proc_path(&self.file),
            CWD,
            &temporary,
            AtFlags::SYMLINK_FOLLOW,
        );
        match linked {
            Ok(()) => {}
            // The name was removed (see `create`), or the file system is another: copy.
            Err(_) => {
                fs::copy(proc_path(&self.file), &temporary).map_err(refused)?;
            }
        }
        fs::rename(&temporary, path).map_err(|source| {
            // Nothing but our own temporary is left to remove.
            let _ = fs::remove_file(&temporary);
            refused(source)
        })
    }
}

/// Beside the kept file; otherwise beside the input if we may write there; otherwise
/// the system's temporary directory.
pub(crate) fn output_directory(input: Option<&Path>, output: Option<&Path>) -> PathBuf {
    if let Some(output) = output {
        return parent(output);
    }
    let beside = input
        .map(parent)
        .filter(|directory| Output::create(directory).is_ok());
    beside.unwrap_or_else(env::temp_dir)
}

/// Reads the input once and returns its digest. The output gets as many bytes, every
/// one of them wrong: so it has its memory before the first carrier writes to it,
/// and a carrier that writes nothing is found out.
pub(crate) fn rehearse(input: &Input, output: &Output) -> Result<String> {
    scan(
        &input.file,
        input.len,
        "reading the input once",
        |bytes, at| output.spoil(bytes, at),
    )
}

/// The digest of what was written; with `spoil` the next carrier finds it wrong again.
pub(crate) fn verify(output: &Output, len: u64, spoil: bool) -> Result<String> {
    scan(&output.file, len, "checking the output", |bytes, at| {
        if spoil {
            output.spoil(bytes, at)
        } else {
            Ok(())
        }
    })
}

/// BLAKE3 of `file`, in hexadecimal. `each` may change the bytes after they were counted.
fn scan(
    file: &File,
    len: u64,
    message: &str,
    mut each: impl FnMut(&mut [u8], u64) -> Result<()>,
) -> Result<String> {
    let bar = super::progress(len, message);
    let mut hasher = blake3::Hasher::new();
    let mut bytes = vec![0; STEP];
    let mut at = 0;
    loop {
        let got = file
            .read_at(&mut bytes, at)
            .map_err(CliError::system("reading a file for its digest"))?;
        if got == 0 {
            break;
        }
        hasher.update(&bytes[..got]);
        each(&mut bytes[..got], at)?;
        at += got as u64;
        bar.set_position(at);
    }
    bar.finish_and_clear();
    Ok(hasher.finalize().to_hex().to_string())
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory.into(),
        _ => ".".into(),
    }
}

fn hidden_name(directory: &Path) -> PathBuf {
    directory.join(format!(".portolan-demo-{}", std::process::id()))
}

/// The file behind a descriptor, also if it has no name.
fn proc_path(file: &File) -> String {
    use std::os::fd::AsRawFd as _;
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

fn reopen(file: &File, access: OFlags) -> Result<File> {
    let descriptor = open(proc_path(file), access | OFlags::CLOEXEC, Mode::empty())
        .map_err(CliError::system("opening a file of the demo again"))?;
    Ok(File::from(descriptor))
}

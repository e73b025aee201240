//! Exported memory, which other processes import: also those of other domains and users.

use crate::closing::closes;
use crate::data::Data;
use crate::error::Fault;
use crate::wait::{Handle, Shared, Timeout, far_patiently};
use crate::watched::{Watched, until};
use portolan::vmmc::{
    ExportOptions, ImportError, Notification as Note, NotificationError, Reach, UpdateError,
};
use portolan::{Deadline, Domain, OfferConnectError, Permissions};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// Memory to be exported. Importers may write it at any time, so it is read by copying: with `read`,
/// and word by word with `load_acquire`.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct ExportMemory(Shared<Arc<portolan::vmmc::ExportMemory>>);

fn word<T>(done: Result<T, UpdateError>) -> PyResult<T> {
    Ok(done.map_err(Fault::from)?)
}

/// Bytes that `read` copies, without the interpreter's lock.
fn bytes_read<'py>(
    py: Python<'py>,
    len: usize,
    read: impl FnOnce(&mut [u8]) -> Result<(), UpdateError> + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, len, |room| word(py.detach(|| read(room))))
}

#[pymethods]
impl ExportMemory {
    /// So many bytes of zeros.
    #[new]
    fn new(len: usize) -> PyResult<Self> {
        let made = portolan::vmmc::ExportMemory::new(len).map_err(Fault::from)?;
        Ok(Self(Shared::new("memory", Arc::new(made))))
    }

    /// Takes memory for every page now, so that no access can fail for want of it.
    fn populate(&self, py: Python<'_>) -> PyResult<()> {
        let memory = self.0.get()?;
        Ok(py.detach(|| memory.populate()).map_err(Fault::from)?)
    }

    /// Copies `len` bytes from `offset` on.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        len: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let memory = self.0.get()?;
        bytes_read(py, len, |room| memory.read(offset, room))
    }

    /// Copies bytes (anything with a buffer) to `offset` and the following.
    fn write(&self, py: Python<'_>, offset: usize, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let (memory, data) = (self.0.get()?, Data::of(data)?);
        let bytes = data.bytes();
        word(py.detach(|| memory.write(offset, bytes)))
    }

    /// The word at `offset`, a multiple of 8: what its writer wrote before it is then there.
    fn load_acquire(&self, offset: usize) -> PyResult<u64> {
        word(self.0.get()?.load_acquire(offset))
    }

    /// Stores a word at `offset`, a multiple of 8, behind everything that this thread wrote before.
    fn store_release(&self, offset: usize, value: u64) -> PyResult<()> {
        word(self.0.get()?.store_release(offset, value))
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.0.get()?.len())
    }
}

closes! {
    /// Gives it up: memory that is exported is there until the export ends.
    ExportMemory, |this, py| this.0.close(py)
}

/// Memory that others may import under a name, until it is closed.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Export {
    domain: Domain,
    export: Handle<portolan::vmmc::Export>,
}

fn reach_of(name: &str) -> Result<Reach, Fault> {
    match name {
        "read" => Ok(Reach::Read),
        "write" => Ok(Reach::Write),
        "read_write" => Ok(Reach::ReadWrite),
        _ => {
            let text = format!(
                "importers may \"read\", \"write\", or do both (\"read_write\"): not {name:?}"
            );
            Err(Fault::new("ValueError", text))
        }
    }
}

impl Export {
    pub(crate) fn new(
        py: Python<'_>,
        domain: Domain,
        memory: &ExportMemory,
        name: &str,
        options: &ExportOptions,
        timeout: Timeout,
    ) -> PyResult<Self> {
        let memory = memory.0.get()?;
        let made = py.detach(|| domain.export(&*memory, name, options, timeout.deadline()));
        Ok(Self {
            domain,
            export: Handle::new("export", made.map_err(Fault::from)?),
        })
    }
}

/// How memory is exported, as Python says it. Neither users nor groups: to processes of the own user.
pub(crate) fn options(
    reach: &str,
    users: Option<Vec<u32>>,
    groups: Option<Vec<u32>>,
    importers: Option<usize>,
) -> Result<ExportOptions, Fault> {
    let mut options = ExportOptions::new(reach_of(reach)?);
    if users.is_some() || groups.is_some() {
        let named = Permissions::nobody()
            .users(users.unwrap_or_default())
            .groups(groups.unwrap_or_default());
        options = options.permit(named);
    }
    if let Some(most) = importers {
        options = options.importers(most);
    }
    Ok(options)
}

#[pymethods]
impl Export {
    /// The name under which it is imported.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.export.lend_soon(py)?.name().to_owned())
    }

    /// How many have imported it now.
    #[getter]
    fn importers(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.export.lend_soon(py)?.importers())
    }

    /// Has importers notify from now on; there is one such object of an export at a time.
    fn notifications(&self, py: Python<'_>) -> PyResult<Notifications> {
        let export = self.export.lend_soon(py)?;
        let made = export.notifications().map_err(Fault::from)?;
        let watched = Watched::new(self.domain.clone(), made);
        Ok(Notifications(Handle::new("notifications", watched)))
    }

    /// Ends the export: from here on no importer changes a byte. If it raises, it can be tried again.
    fn unexport(&self, py: Python<'_>) -> PyResult<()> {
        let export = self.export.take()?;
        py.detach(|| export.unexport()).map_err(|refused| {
            self.export.put_back(*refused.item);
            Fault::from(refused.why).into()
        })
    }
}

closes! {
    /// Ends it.
    Export, |this, py| this.export.close(py)
}

/// What importers say of their writes.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Notifications(Handle<Watched<portolan::vmmc::Notifications>>);

/// What an importer says.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Notification {
    /// The first byte that it has written, within the export. It is the importer's word, as `len` is.
    #[pyo3(get)]
    offset: usize,
    /// Bytes; may be none.
    #[pyo3(get)]
    len: usize,
    /// Not 0: it has written more than there was room to tell, so many notes of it; anything may have
    /// changed.
    #[pyo3(get)]
    several: u64,
    /// The importer's process when it imported; 0 if it is in another namespace.
    #[pyo3(get)]
    process: u32,
    /// Its user.
    #[pyo3(get)]
    user: u32,
}

impl From<Note> for Notification {
    fn from(note: Note) -> Self {
        let (offset, len, several) = match note {
            Note::Written { offset, len, .. } => (offset, len, 0),
            Note::Several { count, .. } => (0, 0, count.max(1)),
        };
        let importer = note.importer();
        Self {
            offset,
            len,
            several,
            process: importer.process(),
            user: importer.user(),
        }
    }
}

fn note(
    notifications: &mut portolan::vmmc::Notifications,
    deadline: Deadline,
) -> Result<Option<Note>, Fault> {
    match notifications.wait(deadline) {
        Ok(note) => Ok(Some(note)),
        Err(NotificationError::TimedOut) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

#[pymethods]
impl Notifications {
    /// Waits for a notification, at most `timeout` seconds. `TimedOut` if none came.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Notification> {
        let (_, note) = self
            .0
            .wait(py, Timeout::new(timeout)?, "notification", note)?;
        Ok(note.into())
    }

    /// The same, to be awaited.
    fn wait_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        until(slf, "_poll")
    }

    fn _poll(&self) -> PyResult<Option<Notification>> {
        Ok(self.0.poll(note)?.map(|(_, note)| note.into()))
    }

    /// A descriptor that is readable while there may be a notification.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.0.fileno(py)
    }
}

closes! {
    /// Ends it: importers notify no more.
    Notifications, |this, py| this.0.close(py)
}

/// An export of another process, as this process has it.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Import(Shared<Arc<portolan::vmmc::Import>>);

impl Import {
    /// Waits until `import` finds an exporter that answers, which each slice asks anew.
    pub(crate) fn wait(
        py: Python<'_>,
        timeout: Timeout,
        mut import: impl FnMut(Deadline) -> Result<portolan::vmmc::Import, ImportError> + Send,
    ) -> PyResult<Self> {
        let mut absent = None;
        let found = far_patiently(py, timeout, |deadline| match import(deadline) {
            Err(
                why @ (ImportError::TimedOut { .. }
                | ImportError::Connect(
                    OfferConnectError::NotOffered { .. }
                    | OfferConnectError::NotMet { .. }
                    | OfferConnectError::NotRunning { .. },
                )),
            ) => {
                absent = Some(why);
                Ok(None)
            }
            other => other.map(Some),
        })?;
        let none = || absent.map_or_else(|| Fault::timed_out("export"), Fault::from);
        let import = Arc::new(found.ok_or_else(none)?);
        Ok(Self(Shared::new("import", import)))
    }
}

#[pymethods]
impl Import {
    /// The name of the export.
    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.0.get()?.name().to_owned())
    }

    /// Raises `Revoked` or `ExporterDied` if the export is not there any more.
    fn check(&self) -> PyResult<()> {
        word(self.0.get()?.check())
    }

    /// Copies bytes (anything with a buffer) to `offset` and the following. When it returns they are in
    /// the exporter's memory.
    fn write(&self, py: Python<'_>, offset: usize, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let (import, data) = (self.0.get()?, Data::of(data)?);
        let bytes = data.bytes();
        word(py.detach(|| import.write(offset, bytes)))
    }

    /// The same, and notifies the exporter of it.
    fn write_notifying(
        &self,
        py: Python<'_>,
        offset: usize,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (import, data) = (self.0.get()?, Data::of(data)?);
        let bytes = data.bytes();
        word(py.detach(|| import.write_notifying(offset, bytes)))
    }

    /// Notifies the exporter of bytes that were written.
    fn notify(&self, offset: usize, len: usize) -> PyResult<()> {
        word(self.0.get()?.notify(offset, len))
    }

    /// Copies `len` bytes from `offset` on.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        len: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let import = self.0.get()?;
        bytes_read(py, len, |room| import.read(offset, room))
    }

    /// The word at `offset`, a multiple of 8: what its writer wrote before it is then there.
    fn load_acquire(&self, offset: usize) -> PyResult<u64> {
        word(self.0.get()?.load_acquire(offset))
    }

    /// Stores a word at `offset`, a multiple of 8, behind everything that this thread wrote before.
    fn store_release(&self, offset: usize, value: u64) -> PyResult<()> {
        word(self.0.get()?.store_release(offset, value))
    }

    /// Maps the `len` bytes at `start` of `memory` to the import from `offset` on; to its end, if `len` is
    /// not said. What is stored by the log is then in both.
    #[pyo3(signature = (memory, *, start = 0, len = None, offset = 0))]
    fn map_log(
        &self,
        memory: &Bound<'_, ExportMemory>,
        start: usize,
        len: Option<usize>,
        offset: usize,
    ) -> PyResult<Log> {
        let (import, memory) = (self.0.get()?, memory.get().0.get()?);
        let len = len.unwrap_or_else(|| import.len().saturating_sub(offset));
        let part = start..start.saturating_add(len);
        let log = import.map_log(&memory, part, offset).map_err(Fault::from)?;
        Ok(Log(Handle::new("log", log)))
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.0.get()?.len())
    }
}

closes! {
    /// Lets go of it.
    Import, |this, py| this.0.close(py)
}

/// Stores to memory of this process that reach an import too, in the order in which they are made: a
/// reader that sees a flag sees what was stored before it. One thread stores at a time.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Log(Handle<portolan::vmmc::Log>);

#[pymethods]
impl Log {
    /// Stores bytes (anything with a buffer), `at` so many after the first mapped one. Stores that follow
    /// one another without a gap are sent together.
    fn store(&self, py: Python<'_>, at: usize, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = Data::of(data)?;
        let bytes = data.bytes();
        let mut log = self.0.lend_soon(py)?;
        word(py.detach(|| log.store(at, bytes)))
    }

    /// Stores a word, at a multiple of 8. When this returns, it and all that was stored before have
    /// landed.
    fn store_release(&self, py: Python<'_>, at: usize, value: u64) -> PyResult<()> {
        let mut log = self.0.lend_soon(py)?;
        word(py.detach(|| log.store_release(at, value)))
    }

    /// Sends what is not sent yet. When this returns, all that was stored has landed.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let mut log = self.0.lend_soon(py)?;
        word(py.detach(|| log.flush()))
    }

    /// The same, and notifies the exporter of what was sent since this was called last.
    fn flush_notifying(&self, py: Python<'_>) -> PyResult<()> {
        let mut log = self.0.lend_soon(py)?;
        word(py.detach(|| log.flush_notifying()))
    }

    /// Sends what is not sent yet, and ends the mapping. It has ended also if this raises.
    fn unmap(&self, py: Python<'_>) -> PyResult<()> {
        let log = self.0.take()?;
        word(py.detach(|| log.unmap()))
    }
}

closes! {
    /// As `unmap`, and says nothing of stores that have not landed.
    Log, |this, py| this.0.close(py)
}

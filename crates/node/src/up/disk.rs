//! What a running node writes to its state directory, beside the thread that carries messages.
//!
//! ```text
//! node's thread --ask(job)--> disk's thread: writes, and waits until it lasts --written()--> node's thread
//! ```
//!
//! A disk may take seconds until something lasts. A node that waited for it would be silent meanwhile: its
//! peers would end their links with it, and commands would get no answer.
//!
//! # Invariants
//!
//! - **K1** Jobs are done one after the other, in the order in which they were asked for.
//! - **K2** What must not happen before it lasts is done when its job is [taken](Disk::written): a
//!   certificate is given out then, and a command answered.
//! - **K3** When a disk is dropped, all that it was asked for has been done. So it is dropped before the
//!   directory's lock is let go of; a node that ends waits for what follows from that, too.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use portolan_sys::process::EventFd;
use portolan_transport::NodeId;
use portolan_transport::tls::Certificate;

use super::Node;
use crate::Result;
use crate::state::State;

/// Something to write, with what may take as long beside it.
type Job = Box<dyn FnOnce(&State) -> Written + Send>;

/// What has come of a job.
#[derive(Debug)]
pub(super) enum Written {
    /// A line of the audit log.
    Noted(Result<()>),
    /// What the authority has stated.
    Statements(Result<()>),
    /// The certificate that this peer has asked for, and the log's line of it.
    Signed(NodeId, Result<Vec<u8>>),
    /// This node's new certificate.
    Renewed(Result<Certificate>),
    /// The answer to the newcomer of this number.
    Answered(u64, Vec<u8>),
}

/// The thread that writes.
#[derive(Debug)]
pub(super) struct Disk {
    jobs: Option<Sender<Job>>,
    done: Receiver<Written>,
    thread: Option<JoinHandle<()>>,
    /// Jobs that are not taken yet.
    open: usize,
}

impl Disk {
    /// Writes to this directory, and wakes the node whenever something is done.
    ///
    /// # Errors
    ///
    /// There is no room for a thread.
    pub(super) fn new(state: &State, wakes: Arc<EventFd>) -> io::Result<Self> {
        let (jobs, asked) = channel::<Job>();
        let (says, done) = channel();
        let state = state.clone();
        let thread = std::thread::Builder::new().name("node-disk".to_owned());
        let thread = thread.spawn(move || {
            for job in asked {
                // The node is gone, or is woken.
                let _ = says.send(job(&state));
                let _ = wakes.notify();
            }
        })?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            open: 0,
        })
    }

    /// Has something written.
    pub(super) fn ask(&mut self, job: impl FnOnce(&State) -> Written + Send + 'static) {
        // The thread takes jobs until this is dropped.
        let asked = self.jobs.as_ref().map(|jobs| jobs.send(Box::new(job)));
        self.open += usize::from(matches!(asked, Some(Ok(()))));
    }

    /// The next job that is done, if one is.
    fn written(&mut self) -> Option<Written> {
        match self.done.try_recv() {
            Ok(written) => self.taken(Some(written)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self.taken(None),
        }
    }

    /// The next job; waits until it is done.
    fn next(&mut self) -> Option<Written> {
        let written = self.done.recv().ok();
        self.taken(written)
    }

    fn taken(&mut self, written: Option<Written>) -> Option<Written> {
        self.open = match written {
            Some(_) => self.open.saturating_sub(1),
            // A job has panicked: nothing more comes.
            None => 0,
        };
        written
    }

    /// Whether all that it was asked for is done, and taken.
    pub(super) fn is_idle(&self) -> bool {
        self.open == 0
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A job that has panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Node {
    /// Does what follows from what is on the disk by now.
    pub(super) fn take_written(&mut self) {
        while let Some(written) = self.disk.written() {
            self.take_one(written);
        }
    }

    /// Waits until all is on the disk.
    pub(super) fn finish_writing(&mut self) {
        while !self.disk.is_idle() {
            if let Some(written) = self.disk.next() {
                self.take_one(written);
            }
        }
    }

    fn take_one(&mut self, written: Written) {
        match written {
            Written::Noted(Ok(())) => {}
            Written::Noted(Err(error)) => {
                self.log(&format!("cannot write the audit log: {error}"));
            }
            Written::Statements(kept) => self.statements_kept(kept),
            Written::Signed(node, signed) => self.signed(node, signed),
            Written::Renewed(renewed) => self.renewed(renewed),
            Written::Answered(guest, answer) => self.answer_guest(guest, answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use portolan_testkit::{unique, until};

    use super::*;

    fn disk() -> (State, Arc<EventFd>, Disk) {
        let state = State::at(&std::env::temp_dir().join(unique("disk"))).unwrap();
        let wakes = Arc::new(EventFd::new().unwrap());
        let disk = Disk::new(&state, Arc::clone(&wakes)).unwrap();
        (state, wakes, disk)
    }

    #[test]
    fn jobs_are_done_in_turn_and_nobody_waits_for_them() {
        let (_, wakes, mut disk) = disk();
        let (goes_on, waits) = sync_channel::<()>(0);
        disk.ask(move |_| {
            waits.recv().unwrap();
            Written::Answered(1, Vec::new())
        });
        disk.ask(|_| Written::Answered(2, Vec::new()));
        assert!(disk.written().is_none() && !disk.is_idle());
        goes_on.send(()).unwrap();
        let mut came = Vec::new();
        until("both are done", || {
            let written = std::iter::from_fn(|| disk.written());
            came.extend(written.map(|it| match it {
                Written::Answered(number, _) => number,
                other => panic!("{other:?}"),
            }));
            came.len() == 2
        });
        assert_eq!(came, [1, 2]);
        assert!(disk.is_idle());
        let mut woken = 0;
        until("each has woken the node", || {
            woken += wakes.drain().unwrap();
            woken == 2
        });
    }

    #[test]
    fn a_disk_that_is_dropped_has_done_all() {
        let (state, _, mut disk) = disk();
        for line in 0..3 {
            disk.ask(move |state| Written::Noted(state.write("last", &line.to_string())));
        }
        drop(disk);
        assert_eq!(state.read("last").unwrap().as_deref(), Some("2"));
        std::fs::remove_dir_all(state.path()).unwrap();
    }
}

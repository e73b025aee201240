//! An importer verifies the exporter's answer and its descriptors, then maps them.

use super::backend::{Backend, place};
use super::imported::Imported;
use super::notify::Poster;
use super::watch::Watched;
use super::write_queue::WriteOrder;
use super::{Import, ImportError};
use crate::directory::Entrance;
use crate::space::Descriptor;
use crate::space::Member;
use crate::space::handshake::GrantOf;
use portolan_abi::FORMAT_VERSION;
use portolan_abi::handshake::Refusal;
use portolan_abi::vmmc::{Ask, Denied, Granted, Way, notification_page, status_page};
use portolan_proto::handshake::{Failure, Garbled};
use portolan_sys::memory::{self, Mapping};
use portolan_sys::process::PidFd;
use portolan_sys::socket;
use std::sync::Arc;

/// Why there is no import yet.
pub(super) enum Miss {
    /// The exporter went away in the middle: look for it anew.
    Again,
    /// The kernel does not let us in: ask anew, for the host to copy.
    Delegate,
    Final(ImportError),
}

impl<E: Into<ImportError>> From<E> for Miss {
    fn from(error: E) -> Self {
        Self::Final(error.into())
    }
}

impl Import {
    /// What came in answer to an [`Ask`], of export `name`, and at most `max` bytes: maps what was
    /// granted, once it has been found to be what it was said to be.
    pub(super) fn answered(
        connection: Descriptor,
        name: &str,
        max: u64,
        answer: Result<GrantOf<Ask>, Failure<Denied>>,
        entrance: Option<Entrance>,
        member: Option<&Arc<Member>>,
    ) -> Result<Self, Miss> {
        // From here on the exporter has nothing to send but the end.
        let _ = socket::refuse_descriptors(&connection);
        let (granted, fds) = answer.map_err(|failure| failed(failure, name))?;
        let Granted {
            reach,
            fences,
            way,
            len,
            ranges,
        } = granted;
        let too_large = || ImportError::TooLarge {
            name: name.to_owned(),
            len,
            max,
        };
        let bytes = usize::try_from(len).map_err(|_| too_large())?;
        if len > max {
            return Err(too_large().into());
        }
        let mut fds = fds.into_iter();
        let mut next = || {
            let what = "too few descriptors";
            fds.next().ok_or(ImportError::Garbled { what })
        };
        let file = match way {
            Way::Shared => Some(next()?),
            Way::Kernel { .. } | Way::Brokered(_) => None,
        };
        let (status_page, notification_page, exporter) = (next()?, next()?, next()?);
        if let Some(file) = &file {
            memory::verify(file, len).map_err(ImportError::from)?;
        }
        memory::verify(&status_page, status_page::BYTES as u64).map_err(ImportError::from)?;
        memory::verify(&notification_page, notification_page::BYTES as u64)
            .map_err(ImportError::from)?;
        let exporter = PidFd::from_descriptor(exporter).map_err(ImportError::from)?;
        let backend = Backend::open(&granted, bytes, file, &status_page, &exporter, entrance)?;
        let inner = Imported {
            name: name.to_owned(),
            reach,
            ranges,
            fences,
            backend,
            status_page: place(Mapping::read_only(&status_page, status_page::BYTES))?,
            notification_page: place(Mapping::shared_anywhere(
                &notification_page,
                notification_page::BYTES,
            ))?,
            poster: Poster::default(),
            exporter: Watched::new(connection, exporter)
                .map_err(|e| ImportError::system("watch the exporter", &e))?,
            write_order: WriteOrder::default(),
            member: member.cloned(),
        };
        portolan_shm::mark!("import.mapped");
        Ok(Self {
            inner: Arc::new(inner),
        })
    }
}

fn failed(failure: Failure<Denied>, name: &str) -> Miss {
    let what = match failure {
        Failure::Refused(Refusal { why, version, .. }) => return denied(why, version, name),
        Failure::HungUp | Failure::Unanswered => return Miss::Again,
        Failure::Garbled(Garbled::Truncated) => "more than an answer",
        Failure::Garbled(Garbled::Record(_)) => "no record",
        Failure::Garbled(Garbled::Descriptors { .. }) => "another number of descriptors",
    };
    ImportError::Garbled { what }.into()
}

fn denied(why: Denied, theirs: u32, name: &str) -> Miss {
    let name = name.to_owned();
    match why {
        Denied::Over => return Miss::Again,
        Denied::Version => ImportError::OtherVersion {
            theirs,
            ours: FORMAT_VERSION,
        },
        // The second is none of an export's.
        Denied::Garbled | Denied::Sealed => ImportError::Garbled {
            what: "it does not understand what it was asked",
        },
        Denied::Full => ImportError::Full { name },
        Denied::Resources => ImportError::ExporterResources { name },
        Denied::NoCopyBroker => ImportError::NoCopyBroker { name },
    }
    .into()
}

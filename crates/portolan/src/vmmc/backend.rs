//! A backend carries out an import's reads and writes: on a mapping, or through the kernel.

use super::granted::Miss;
use super::kernel::{Brokered, Direct, Ordinary, Unopened};
use super::place::Place;
use super::{ImportError, UpdateError};
use crate::directory::Entrance;
use portolan_abi::vmmc::{Granted, Way};
use portolan_sys::memory::{MapError, Mapping};
use portolan_sys::process::PidFd;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;

/// Which way the bytes of an import take.
pub(super) enum Backend {
    /// User level: this process has mapped the exported pages.
    Mapped {
        /// The file that `place` maps.
        file: OwnedFd,
        place: Place,
    },
    /// Kernel-mediated: this process asks the kernel to copy.
    Kernel(Direct),
    /// Kernel-mediated: the domain's host asks the kernel to copy.
    Host(Brokered),
}

impl Backend {
    /// Maps the granted file, which has `len` bytes and is verified, or opens the exporter's
    /// memory.
    pub(super) fn open(
        granted: &Granted,
        len: usize,
        file: Option<OwnedFd>,
        status_page: &OwnedFd,
        exporter: &PidFd,
        entrance: Option<Entrance>,
    ) -> Result<Self, Miss> {
        match (granted.way, file) {
            (Way::Shared, Some(file)) => {
                let mapped = if granted.reach.writes() {
                    Mapping::shared_anywhere(&file, len)
                } else {
                    Mapping::read_only(&file, len)
                };
                let place = place(mapped)?;
                Ok(Self::Mapped { file, place })
            }
            (
                Way::Kernel {
                    address,
                    status_page: at,
                },
                None,
            ) => {
                let ordinary = Ordinary {
                    address,
                    status_page: at,
                    len,
                };
                match Direct::open(exporter, status_page, &ordinary) {
                    Ok(direct) => Ok(Self::Kernel(direct)),
                    Err(Unopened::Gone) => Err(Miss::Again),
                    // The host may open the memory, if the domain has one.
                    Err(Unopened::Refused(ImportError::Unreachable(_))) if entrance.is_some() => {
                        Err(Miss::Delegate)
                    }
                    Err(Unopened::Refused(error)) => Err(Miss::Final(error)),
                }
            }
            (Way::Brokered(capability), None) => {
                let what = "a capability for the host of a domain that has none";
                let entrance = entrance.ok_or(ImportError::Garbled { what })?;
                Ok(Self::Host(Brokered::new(entrance, capability, len)))
            }
            _ => {
                let what = "a file for memory that is not mapped, or none";
                Err(ImportError::Garbled { what }.into())
            }
        }
    }

    /// The size of the export in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Mapped { place, .. } => place.len(),
            Self::Kernel(direct) => direct.len(),
            Self::Host(brokered) => brokered.len(),
        }
    }

    /// The mapped file, if there is one.
    pub(super) fn file(&self) -> Result<&OwnedFd, UpdateError> {
        match self {
            Self::Mapped { file, .. } => Ok(file),
            Self::Kernel(_) | Self::Host(_) => Err(UpdateError::NoWords),
        }
    }

    /// The words, if they are mapped.
    #[inline]
    pub(super) fn words(&self) -> Result<&[AtomicU64], UpdateError> {
        match self {
            Self::Mapped { place, .. } => Ok(place.words()),
            Self::Kernel(_) | Self::Host(_) => Err(UpdateError::NoWords),
        }
    }
}

/// An exporter's mapping as words; forked children do not inherit it.
pub(super) fn place(mapped: Result<Mapping, MapError>) -> Result<Place, ImportError> {
    let mapping = mapped.and_then(Mapping::not_in_children);
    mapping.map(Place::new).map_err(ImportError::Map)
}

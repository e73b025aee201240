//! Says what a message carries, and how its receiver touches it.

use std::hint::black_box;

use portolan::probes::{self, Point};
use portolan::{Domain, Message};
use serde::{Deserialize, Serialize};

use crate::error::{LabError, Result};

/// A page of the paper's: two of this machine's.
pub(crate) const PAGE: usize = 8 << 10;

/// So many extents of one size. None is another's neighbour, so that no two are closed or
/// opened together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) extents: usize,
    pub(crate) bytes: usize,
}

impl Load {
    pub(crate) const fn one(bytes: usize) -> Self {
        Self { extents: 1, bytes }
    }

    pub(crate) const fn pages(extents: usize) -> Self {
        Self {
            extents,
            bytes: PAGE,
        }
    }

    pub(crate) fn total(self) -> usize {
        self.extents * self.bytes
    }

    /// Inline bytes that a port's slots need, so that no message takes the long way.
    pub(crate) fn inline_bytes(self) -> usize {
        (16 * self.extents).max(48)
    }

    /// A message with this load, written once.
    pub(crate) fn message(self, domain: &Domain) -> Result<Message> {
        let mut extents = (0..2 * self.extents)
            .map(|_| domain.allocate(self.bytes))
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(LabError::library("allocating an extent"))?;
        extents.sort_by_key(portolan::Extent::address);
        let mut message = Message::default();
        for mut extent in extents.into_iter().step_by(2) {
            extent.fill(1);
            message
                .push(extent)
                .map_err(LabError::library("putting an extent into a message"))?;
        }
        Ok(message)
    }

    /// Finds each page of the paper's in the message and touches it, all of its pages.
    #[inline]
    pub(crate) fn touch(self, message: &mut Message) {
        for offset in (0..self.total()).step_by(PAGE) {
            let Some(page) = message.at_mut(black_box(offset)) else {
                continue;
            };
            probes::pass(Point::AccessFound);
            for byte in page.iter_mut().step_by(PAGE / 2).take(2) {
                *byte = byte.wrapping_add(1);
            }
            probes::pass(Point::AccessDone);
        }
    }
}

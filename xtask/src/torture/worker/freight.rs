//! Sends parcels beside channels: extents by move, and shared ones.

use super::super::board::Entry;
use super::super::stream::{self, ANYWHERE};
use super::super::{Doing, payload};
use super::{SHORT, Worker, keep};
use portolan::channel::{
    ChannelOptions, Parcel, ParcelError, ParcelReader, ParcelWriter, ReadError, ReaderOptions,
    WriteError,
};
use portolan::{Deadline, Domain, Right, SendError, SharedExtent};
use std::sync::atomic::Ordering;

/// Channels that carry parcels: a reliable one, and one that may lose some.
const NAMES: [&str; 2] = ["freight", "leaflets"];

/// What a worker has of parcels. None of it outlives a pause: how many readers a writer
/// knows, no journal could say.
#[derive(Default)]
pub(super) struct Freight {
    /// Also who it is, and the number of its last note.
    writer: Option<(ParcelWriter, u64, u64)>,
    /// Also who wrote the last note, and its number.
    reader: Option<(ParcelReader, Option<(u64, u64)>)>,
}

impl Worker {
    pub(super) fn freight(&mut self) {
        self.doing(Doing::Streaming);
        let Some(domain) = self.domain.clone() else {
            return;
        };
        match self.random.below(20) {
            0 => self.holds.freight = Freight::default(),
            1..4 => self.share_extent(&domain),
            4..12 => self.send_parcel(&domain),
            _ => self.receive_parcel(&domain),
        }
    }

    /// Makes an extent that all may read, or looks at one.
    fn share_extent(&mut self, domain: &Domain) {
        if let Some(extent) = self.extent()
            && let Ok(shared) = domain.share_extent(extent)
        {
            return self.keep_shared(shared);
        }
        drop(self.holds.shared.pop());
    }

    pub(super) fn keep_shared(&mut self, shared: SharedExtent) {
        if let Err(why) = payload::verify(&shared) {
            self.corrupt(&format!("a shared extent: {why}"));
        }
        keep(&mut self.holds.shared, shared);
    }

    /// A right on memory that all may read.
    pub(super) fn shared_right(&mut self) -> Option<Right> {
        let at = self.random.below(self.holds.shared.len());
        Some(self.holds.shared.get(at)?.clone().into())
    }

    fn freight_channel(&mut self, domain: &Domain) -> Option<portolan::channel::Channel> {
        let kind = self.random.below(NAMES.len());
        let name = NAMES[kind];
        let options = ChannelOptions::named(name).units(16).readers(64);
        let options = if kind == 0 {
            options.reliable()
        } else {
            options
        };
        let found = domain.find_channel(name, Deadline::NOW).ok();
        found.or_else(|| domain.make_channel(&options).ok())
    }

    fn send_parcel(&mut self, domain: &Domain) {
        if self.holds.freight.writer.is_none() {
            let channel = self.freight_channel(domain);
            let writer = channel.and_then(|c| c.bind_parcel_writer().ok());
            let who = self.random.next();
            self.holds.freight.writer = writer.map(|w| (w, who, 0));
        }
        let shares = self.random.once_in(2);
        let extent = self.extent();
        let Some((writer, who, number)) = &mut self.holds.freight.writer else {
            return;
        };
        let parcel = match extent {
            Some(extent) if shares => domain.share_extent(extent).ok().map(Parcel::Shared),
            other => other.map(Parcel::Moved),
        };
        let note = stream::message(*who, *number + 1, ANYWHERE, 32);
        let refused = match writer.send(&note, parcel, Deadline::after(SHORT)) {
            Ok(_) => {
                *number += 1;
                None
            }
            Err(refused) => match refused.why {
                ParcelError::NotOneReader { .. }
                | ParcelError::NotReliable
                | ParcelError::Unknown { .. }
                | ParcelError::Write(WriteError::Full { .. })
                | ParcelError::Unsent(
                    SendError::Full { .. } | SendError::DeadName | SendError::Allocate(_),
                ) => None,
                other => Some(other.to_string()),
            },
        };
        if let Some(why) = refused {
            self.corrupt(&format!("a parcel was refused: {why}"));
        }
    }

    fn receive_parcel(&mut self, domain: &Domain) {
        if self.holds.freight.reader.is_none() {
            let channel = self.freight_channel(domain);
            let bound =
                channel.and_then(|c| c.bind_parcel_reader(ReaderOptions::default(), SHORT).ok());
            self.holds.freight.reader = bound.map(|r| (r, None));
        }
        for _ in 0..=self.random.below(4) {
            let Some((reader, last)) = &mut self.holds.freight.reader else {
                return;
            };
            let delivery = match reader.receive(Deadline::after(SHORT)) {
                Ok(delivery) => delivery,
                Err(ReadError::TimedOut) => return,
                Err(ReadError::Missed(_) | ReadError::WriterGone) => continue,
                Err(other) => {
                    self.holds.freight.reader = None;
                    return self.corrupt(&format!("parcels: {other}"));
                }
            };
            let note = stream::read(&delivery.note, true).map(|(who, number, _)| (who, number));
            let again = note
                .zip(*last)
                .is_some_and(|((who, number), (last, before))| who == last && number <= before);
            *last = note;
            if note.is_none() || again {
                self.corrupt(&format!(
                    "a note is torn, or came again: {:?}",
                    delivery.note
                ));
            }
            match delivery.parcel {
                Some(Parcel::Moved(extent)) => self.check(&extent),
                Some(Parcel::Shared(shared)) => self.keep_shared(shared),
                None => {}
            }
            let read = self.board.of(self.at, Entry::Read);
            read.fetch_add(1, Ordering::Relaxed);
        }
    }
}

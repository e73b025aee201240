//! A write signals the addresses of its units to readers' handlers (M8 in `shm/src/channel/mod.rs`).

use super::reader::Kernel;
use super::{Channel, ChannelError, FrameReader, Reader, Units};
use crate::channel::Ring;
use crate::signal;
use crate::space::Member;
use portolan_shm::channel::{Reading, Signalling};
use portolan_shm::mark;
use std::ops::Range;

impl Channel {
    /// Where its units lie, in every space: what handlers of its signals are added for
    /// ([`Listener::on`](crate::Listener::on)), whole or in part.
    pub fn addresses(&self) -> Range<usize> {
        self.ring.addresses()
    }

    /// The place in the ring of the unit that has the byte at `address`, from 0 on. Of a frame
    /// buffer it is the unit's place; a message at position `p` has its first unit at `p` modulo
    /// [`units`](Self::units).
    pub fn place_of(&self, address: usize) -> Option<u64> {
        let from = address.checked_sub(self.addresses().start)? / self.unit();
        Some(from as u64).filter(|place| *place < self.units())
    }
}

impl Reader {
    /// From now on every signalling unit that is written is signalled, by its address, to the
    /// handlers that listeners of any member have for it. Add the handlers first
    /// ([`Listener::on`](crate::Listener::on)), then enable, then look at what is there: what was
    /// written before may not be signalled.
    ///
    /// A signal says only that there is something to look at: a listener that lags drops signals
    /// and counts them ([`Listener::dropped`](crate::Listener::dropped)), and the writer waits for
    /// none. Ends with [`disable`](Self::disable), and with the reader.
    ///
    /// # Errors
    ///
    /// [`ChannelError::NoEntry`]: the reader has no entry, because all were taken when it was bound.
    /// [`ChannelError::NeverSignals`]. [`ChannelError::Disowned`].
    pub fn enable(&mut self) -> Result<(), ChannelError> {
        self.ring.enable(&mut self.reading)
    }

    /// This reader has no handlers any more. Once no reader has, writers signal nothing. A handler
    /// that stays with its listener is signalled as long as another reader of the channel is
    /// enabled.
    pub fn disable(&mut self) {
        self.ring.disable(&self.reading);
    }
}

impl FrameReader {
    /// From now on units are signalled, by their addresses, to the handlers that listeners of any
    /// member have for them: of a frame the one that was put last, or, where its maker chose
    /// [`Signalling::Bytes`], each that ends so many bytes. See [`Reader::enable`].
    ///
    /// # Errors
    ///
    /// As [`Reader::enable`].
    ///
    /// ```
    /// use portolan::channel::{ChannelOptions, Signalling};
    /// use portolan::{Domain, ListenerOptions};
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    /// use std::sync::Arc;
    /// let domain = Domain::private()?;
    /// let lines = ChannelOptions::unnamed().raw().unit(128).units(4).signal(Signalling::Bytes(128));
    /// let channel = domain.make_channel(&lines)?;
    /// let mut screen = channel.bind_frame_reader()?;
    /// let last = Arc::new(AtomicUsize::new(0));
    /// let sees = Arc::clone(&last);
    /// let mut listener = domain.listen(ListenerOptions::default())?;
    /// listener.on(channel.addresses(), move |address| sees.store(address, Ordering::Relaxed))?;
    /// screen.enable()?;
    ///
    /// let mut camera = channel.bind_frame_writer()?;
    /// camera.put(2, &[1; 128])?;
    /// assert_eq!(listener.poll(), 1);
    /// assert_eq!(channel.place_of(last.load(Ordering::Relaxed)), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enable(&mut self) -> Result<(), ChannelError> {
        self.ring.enable(&mut self.reading)
    }

    /// See [`Reader::disable`].
    pub fn disable(&mut self) {
        self.ring.disable(&self.reading);
    }
}

impl Ring {
    fn enable(&self, reading: &mut Reading) -> Result<(), ChannelError> {
        self.segment().right().to.member.present()?;
        let channel = self.channel();
        if channel.mode().signalling == Signalling::Never {
            return Err(ChannelError::NeverSignals);
        }
        let enabled = channel.enable(reading, &Kernel);
        enabled.map_err(|full| ChannelError::NoEntry {
            entries: full.entries,
        })
    }

    fn disable(&self, reading: &Reading) {
        if self.segment().right().to.member.present().is_ok() {
            self.channel().disable(reading);
        }
    }

    fn addresses(&self) -> Range<usize> {
        let shape = self.channel().shape();
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let start = self.segment().address() + bytes(shape.units_at());
        start..start + bytes(shape.units * shape.unit as u64)
    }

    /// Does what a writer owes its readers after it has found some that sleep or have handlers:
    /// wakes them, and signals the units at these positions.
    #[cold]
    pub(super) fn attend(&self, due: &[u64]) {
        if self.channel().has_sleepers() {
            self.wake_readers();
        }
        for position in due {
            self.signal_unit(*position);
        }
    }

    /// Signals the unit at a position; if no handler wants it, looks whether readers still do.
    fn signal_unit(&self, position: u64) {
        mark!("channel.before_signal");
        let channel = self.channel();
        let unit = self.start() + channel.shape().units_at() + channel.place(position);
        let reached = signal::send(&self.segment().right().to.member, unit);
        if reached == 0 {
            channel.prune();
        }
    }

    /// The writer leaves: handlers look once more.
    pub(super) fn tell_handlers(&self) {
        let member = &self.segment().right().to.member;
        tell_each(member, self.channel(), self.start());
    }

    /// Where the segment begins, as an offset of the region.
    fn start(&self) -> u64 {
        let base = self.segment().right().to.member.region.base();
        (self.segment().address() - base) as u64
    }
}

/// Signals each handler of a channel's units, which begins at `start` of the region: of the unit
/// that was published last, if it wants that. For a writer that is gone, and may have owed them
/// one (M8).
pub(super) fn tell_each(member: &Member, channel: &Units<'_>, start: u64) {
    if !channel.is_handled() {
        return;
    }
    let shape = channel.shape();
    let units = start + shape.units_at();
    let last = units + channel.place(channel.last_published());
    let end = units + shape.units * shape.unit as u64;
    signal::tell_each(member, (units, end), last);
    channel.prune();
}

//! Puts frames into frame buffers, and looks at them.

use super::super::Doing;
use super::super::board::Entry;
use super::super::picture::{self, Picture};
use super::{SHORT, Worker};
use portolan::channel::{Channel, ChannelOptions, FrameReader, FrameWriter, ReadError, Signalling};
use portolan::{Deadline, Domain};
use std::sync::atomic::Ordering;

/// Frame buffers: one that is shown a frame at a time, one that signals every other unit.
const NAMES: [&str; 2] = ["screen", "panel"];
const UNITS: u64 = 16;
const UNIT: usize = 256;

/// What a worker has of them. None of it outlives a pause.
#[derive(Default)]
pub(super) struct Frames {
    /// Also who it is, and its last frame.
    writer: Option<(FrameWriter, u64, u64)>,
    reader: Option<(FrameReader, Picture)>,
}

impl Worker {
    pub(super) fn frames(&mut self) {
        self.doing(Doing::Streaming);
        let Some(domain) = self.domain.clone() else {
            return;
        };
        match self.random.below(20) {
            0 => self.holds.frames = Frames::default(),
            1..9 => self.put_frame(&domain),
            _ => self.look_at_frame(&domain),
        }
    }

    fn screen(&mut self, domain: &Domain) -> Option<Channel> {
        let kind = self.random.below(NAMES.len());
        let name = NAMES[kind];
        let options = ChannelOptions::named(name).raw().unit(UNIT).units(UNITS);
        let options = if kind == 0 {
            options
        } else {
            options.signal(Signalling::Bytes(512))
        };
        let found = domain.find_channel(name, Deadline::NOW).ok();
        found.or_else(|| domain.make_channel(&options).ok())
    }

    fn put_frame(&mut self, domain: &Domain) {
        if self.holds.frames.writer.is_none()
            && let Some(channel) = self.screen(domain)
            && let Ok(writer) = channel.bind_frame_writer()
        {
            let who = 1 + self.random.next() % (picture::WRITERS - 1);
            self.holds.frames.writer = Some((writer, who, 0));
        }
        let goes_back = self.plants("frame");
        let Some((writer, who, frame)) = &mut self.holds.frames.writer else {
            return;
        };
        *frame += 1;
        for place in 0..UNITS {
            // A unit that is lost leaves what was there.
            if !self.random.once_in(8) {
                let frame = if goes_back { *frame / 2 } else { *frame };
                let unit = picture::unit(*who, frame, place, UNIT / 8);
                if writer.put(place, &unit).is_err() {
                    return;
                }
            }
        }
        if writer.show().is_err() {
            return;
        }
        let put = self.board.of(self.at, Entry::Put);
        put.fetch_add(1, Ordering::Relaxed);
        if *frame + 1 == picture::FRAMES {
            self.holds.frames.writer = None;
        }
    }

    fn look_at_frame(&mut self, domain: &Domain) {
        if self.holds.frames.reader.is_none()
            && let Some(channel) = self.screen(domain)
            && let Ok(reader) = channel.bind_frame_reader()
        {
            let units = usize::try_from(UNITS).unwrap_or(0);
            let picture = Picture::new(units, UNIT / 8);
            self.holds.frames.reader = Some((reader, picture));
        }
        let deadline = match self.random.below(4) {
            0 => Deadline::after(SHORT),
            _ => Deadline::NOW,
        };
        let Some((reader, picture)) = &mut self.holds.frames.reader else {
            return;
        };
        let seen = match reader.wait(deadline) {
            Ok(0) => Err("nothing was put, and it says so".to_owned()),
            Ok(_) | Err(ReadError::TimedOut | ReadError::WriterGone) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        let mut bytes = [0; UNIT];
        let seen = (0..UNITS).fold(seen, |seen, place| {
            seen?;
            let len = reader.get(place, &mut bytes).map_err(|e| e.to_string())?;
            picture.look(place, &bytes[..len])
        });
        match seen {
            Ok(()) => {
                let looks = self.board.of(self.at, Entry::Looked);
                looks.fetch_add(1, Ordering::Relaxed);
            }
            Err(what) => {
                self.holds.frames.reader = None;
                self.corrupt(&format!("a frame buffer: {what}"));
            }
        }
    }
}

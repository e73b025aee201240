//! Reads what a message in a slot holds, by the layouts alone.

use super::image::{Image, Slot};
use portolan_abi::owner::Descriptor;
use portolan_abi::port::RightWord;
use portolan_abi::slot::{Kind, Meta};
use std::io;

/// What a message holds.
pub(super) struct Contents {
    pub(super) kind: Kind,
    pub(super) reply: Option<RightWord>,
    pub(super) rights: Vec<RightWord>,
    pub(super) extents: Vec<Descriptor>,
    pub(super) garbled: bool,
}

impl Contents {
    /// Inline: reply, urgency, then rights and extents; or a header extent, which holds
    /// the header, padded, and after it the rights and extents.
    pub(super) fn read(image: &Image, slot: &Slot) -> io::Result<Self> {
        let meta = Meta::unpack(slot.words.first().copied().unwrap_or(0));
        let mut words = slot.words[1..].iter().copied();
        let mut contents = Self {
            kind: meta.kind,
            reply: None,
            rights: Vec::new(),
            extents: Vec::new(),
            garbled: false,
        };
        if meta.reply {
            contents.reply = words.next().and_then(RightWord::unpack);
            contents.garbled |= contents.reply.is_none();
        }
        if meta.urgent {
            words.next();
        }
        if meta.sealed {
            words.next();
        }
        if !meta.spilled {
            contents.read_lists(&meta, words);
            return Ok(contents);
        }
        let page = words
            .next()
            .zip(words.next())
            .and_then(|(a, b)| Descriptor::unpack([a, b]));
        let Some(page) = page else {
            contents.garbled = true;
            return Ok(contents);
        };
        contents.extents.push(page);
        let inner = image.extent(page.page, page.len)?;
        contents.read_lists(
            &meta,
            inner.into_iter().skip(usize::from(meta.header).div_ceil(8)),
        );
        Ok(contents)
    }

    fn read_lists(&mut self, meta: &Meta, mut words: impl Iterator<Item = u64>) {
        for _ in 0..meta.rights {
            let right = words.next().and_then(RightWord::unpack);
            self.garbled |= right.is_none();
            self.rights.extend(right);
        }
        for _ in 0..meta.extents {
            let extent = words
                .next()
                .zip(words.next())
                .and_then(|(a, b)| Descriptor::unpack([a, b]));
            self.garbled |= extent.is_none();
            self.extents.extend(extent);
        }
    }
}

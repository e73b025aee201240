//! What stands in a slot: words written by the sender, read by whoever takes the message.
//!
//! ```text
//! inline:         [reply] [urgency] [right]* [extent, 2 words]* [header bytes]
//! if too long:    [reply] [urgency] [header extent, 2 words]
//! header extent:  [header bytes, padded to a word] [right]* [extent, 2 words]*
//! ```

use crate::extent::Extent;
use crate::member::Member;
use crate::message::{Header, INLINE_HEADER, Message};
use crate::port::Right;
use crate::{AllocateError, extent};
use portolan_abi::limits::MAX_SLOT_LINES;
use portolan_abi::owner::Descriptor;
use portolan_abi::port::RightWord;
use portolan_abi::slot::{Kind, Meta, inline_capacity};
use portolan_shm::queue::{Claim, Slot};
use smallvec::SmallVec;
use std::sync::Arc;

const MOST_WORDS: usize = inline_capacity(MAX_SLOT_LINES) / 8;

/// How a message will stand in a slot.
pub(super) struct Plan {
    pub(super) meta: Meta,
    reply: Option<RightWord>,
}

/// Decides how `message` goes into a slot of `capacity` inline bytes; moves a header that
/// does not fit, with all descriptors, into a header extent.
#[inline]
pub(super) fn plan(member: &Arc<Member>, message: &mut Message, kind: Kind, reply: Option<RightWord>, capacity: usize) -> Result<Plan, AllocateError> {
    let mut meta = Meta {
        header: u16::try_from(message.header().len()).unwrap_or(u16::MAX),
        extents: u16::try_from(message.extents.len()).unwrap_or(u16::MAX),
        rights: u8::try_from(message.rights.len()).unwrap_or(u8::MAX),
        urgent: message.urgency.is_some(),
        reply: reply.is_some(),
        ..Meta::new(kind)
    };
    if meta.inline_bytes() > capacity || matches!(message.raw_header(), Header::Page { .. }) {
        spill(member, message)?;
        meta.spilled = true;
    }
    Ok(Plan { meta, reply })
}

/// Puts header and descriptors into an extent.
#[cold]
fn spill(member: &Arc<Member>, message: &mut Message) -> Result<(), AllocateError> {
    let header = message.header().len();
    let at = header.next_multiple_of(8);
    let end = at + 8 * (message.rights.len() + 2 * message.extents.len());
    let mut page = match message.take_raw_header() {
        Header::Page { extent, .. } if extent.capacity() >= end => extent,
        other => {
            let mut extent = extent::allocate(member, end)?;
            extent[..header].copy_from_slice(other.bytes());
            extent
        }
    };
    // Cannot fail: the capacity was checked.
    let _ = page.set_len(end);
    let rights = message.rights.iter().map(|r| r.word().pack());
    let extents = message.extents.iter().flat_map(|e| e.descriptor().pack());
    for (slot, word) in page[at..].chunks_exact_mut(8).zip(rights.chain(extents)) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    message.set_raw_header(Header::Page { extent: page, len: header });
    Ok(())
}

impl Plan {
    /// Writes the message into a claimed slot.
    #[inline]
    pub(super) fn write(&self, message: &Message, claim: &Claim<'_, '_>) {
        claim.set_meta(self.meta.pack());
        let mut at = 0;
        let mut put = |words: &[u64]| {
            claim.write(at, words);
            at += words.len();
        };
        if let Some(reply) = self.reply {
            put(&[reply.pack()]);
        }
        if let Some(urgency) = message.urgency {
            put(&[urgency.pack()]);
        }
        match message.raw_header() {
            Header::Page { extent, .. } => put(&extent.descriptor().pack()),
            Header::Inline { len, words } => {
                message.rights.iter().for_each(|r| put(&[r.word().pack()]));
                message.extents.iter().for_each(|e| put(&e.descriptor().pack()));
                put(&words[..len.div_ceil(8)]);
            }
            Header::Heap(bytes) => {
                message.rights.iter().for_each(|r| put(&[r.word().pack()]));
                message.extents.iter().for_each(|e| put(&e.descriptor().pack()));
                for chunk in bytes.chunks(8) {
                    put(&[word_of(chunk)]);
                }
            }
        }
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// What a slot says, checked word by word; nothing in it is owned yet.
pub(crate) struct Contents {
    pub(crate) kind: Kind,
    pub(crate) reply: Option<RightWord>,
    pub(crate) urgency: Option<u64>,
    pub(crate) rights: SmallVec<[RightWord; 2]>,
    pub(crate) extents: SmallVec<[Descriptor; 2]>,
    /// The header extent, if there is one.
    pub(crate) page: Option<Descriptor>,
    header: HeaderWords,
}

enum HeaderWords {
    Inline { len: usize, words: [u64; INLINE_HEADER / 8] },
    Long(Vec<u8>),
    InPage(usize),
}

impl Contents {
    /// Reads a published slot.
    #[inline]
    pub(crate) fn read(member: &Member, slot: &Slot<'_>) -> Self {
        let meta = Meta::unpack(slot.meta());
        let mut at = 0;
        let mut next = || {
            let mut word = [0];
            if at < slot.inline_words() {
                slot.read(at, &mut word);
            }
            at += 1;
            word[0]
        };
        let reply = meta.reply.then(&mut next).and_then(RightWord::unpack);
        let urgency = meta.urgent.then(&mut next);
        let mut contents =
            Self { kind: meta.kind, reply, urgency, rights: SmallVec::new(), extents: SmallVec::new(), page: None, header: HeaderWords::InPage(0) };
        if meta.spilled {
            contents.page = sound(member, [next(), next()]);
            contents.read_page(member, &meta);
            return contents;
        }
        // A correct member never writes more than fits; of garbage we read what is there.
        for _ in 0..usize::from(meta.rights).min(slot.inline_words()) {
            contents.rights.extend(RightWord::unpack(next()));
        }
        for _ in 0..usize::from(meta.extents).min(slot.inline_words() / 2) {
            contents.extents.extend(sound(member, [next(), next()]));
        }
        let len = usize::from(meta.header).min((slot.inline_words().saturating_sub(at)) * 8);
        contents.header = if len <= INLINE_HEADER {
            let mut words = [0; INLINE_HEADER / 8];
            slot.read(at, &mut words[..len.div_ceil(8)]);
            HeaderWords::Inline { len, words }
        } else {
            let mut words = [0; MOST_WORDS];
            slot.read(at, &mut words[..len.div_ceil(8)]);
            HeaderWords::Long(bytemuck::cast_slice::<u64, u8>(&words)[..len].to_vec())
        };
        contents
    }

    #[cold]
    fn read_page(&mut self, member: &Member, meta: &Meta) {
        let Some(page) = self.page else { return };
        // Copied once, then checked: the bytes are the sender's until we take the message.
        let bytes = member.region.bytes(page.page, usize::try_from(page.len).unwrap_or(0));
        let header = usize::from(meta.header).min(bytes.len());
        self.header = HeaderWords::InPage(header);
        let mut words = bytes.get(header.next_multiple_of(8)..).unwrap_or(&[]).chunks_exact(8).map(word_of);
        for _ in 0..meta.rights {
            self.rights.extend(words.next().and_then(RightWord::unpack));
        }
        for _ in 0..meta.extents {
            let pair = words.next().zip(words.next());
            self.extents.extend(pair.and_then(|(a, b)| sound(member, [a, b])));
        }
    }

    /// Every extent that travels, the header's included.
    pub(crate) fn all_extents(&self) -> impl Iterator<Item = &Descriptor> {
        self.extents.iter().chain(&self.page)
    }

    /// The message, once all of it is ours.
    #[inline]
    pub(super) fn into_message(self, member: &Arc<Member>, message: &mut Message) {
        message.extents.extend(self.extents.iter().map(|d| Extent::taken(member, *d)));
        message.rights.extend(self.rights.iter().filter_map(|w| Right::taken(member, *w)));
        message.urgency = self.urgency.map(crate::message::Urgency::unpack);
        message.set_raw_header(match (self.header, self.page) {
            (HeaderWords::Inline { len, words }, _) => Header::Inline { len, words },
            (HeaderWords::Long(bytes), _) => Header::Heap(bytes),
            (HeaderWords::InPage(len), Some(page)) => Header::Page { extent: Extent::taken(member, page), len },
            (HeaderWords::InPage(_), None) => Header::default(),
        });
    }
}

/// A descriptor that lies in the arena, or nothing.
#[inline]
fn sound(member: &Member, words: [u64; 2]) -> Option<Descriptor> {
    let pages = member.tables().alloc.pages();
    Descriptor::unpack(words).filter(|d| d.page as usize + d.size.pages() <= pages)
}

//! Lays a message out as a slot's words, which the sender writes, and the receiver or the host reads.
//!
//! ```text
//! inline:         [reply] [urgency] [sealed] [right]* [extent, 2 words]* [header bytes]
//! if too long:    [reply] [urgency] [sealed] [header extent, 2 words]
//! header extent:  [header bytes, padded to a word] [right]* [extent, 2 words]*
//! ```

use crate::AllocateError;
use crate::port::Right;
use crate::port::message::{INLINE_HEADER, Long, Message};
use crate::port::receive::Origin;
use crate::port::sealed::SealedStore;
use crate::space::Member;
use crate::space::extent;
use crate::space::extent::Extent;
use portolan_abi::limits::MAX_SLOT_LINES;
use portolan_abi::owner::{Alloc, Descriptor};
use portolan_abi::port::RightWord;
use portolan_abi::slot::{Kind, Meta, Plain, inline_capacity};
use portolan_shm::bulk;
use portolan_shm::queue::{Claim, Slot};
use smallvec::SmallVec;
use std::sync::Arc;

const MOST_WORDS: usize = inline_capacity(MAX_SLOT_LINES) / 8;

/// How a message will stand in a slot.
pub(super) struct Plan {
    meta: u64,
    /// The first six inline words.
    line: [u64; 6],
    shape: Shape,
}

enum Shape {
    /// A short header and nothing else: written from where it lies.
    Header,
    /// One extent, whose words are there, and then a header that is written from where it lies.
    One,
    /// Reply word, extents and header, all in the first line.
    Line,
    /// Anything: written word by word.
    Rich,
}

/// Decides how `message` goes into a slot of `capacity` inline bytes; moves a header that
/// does not fit, with all descriptors, into a header extent.
#[inline(always)]
pub(super) fn plan(
    member: &Arc<Member>,
    message: &mut Message,
    kind: Kind,
    reply: Option<u64>,
    capacity: usize,
) -> Result<Plan, AllocateError> {
    let first = usize::from(reply.is_some());
    let extents = message.extents.len();
    if message.rest().is_some() || 8 * first + 16 * extents + message.header_len() > FIRST_LINE {
        return plan_rich(member, message, kind, reply.unwrap_or(0), capacity);
    }
    let meta = Meta::plain(Plain {
        kind,
        header: message.header_len(),
        extents,
        reply: reply.is_some(),
        structure: message.structure,
    });
    let mut line = [0; 6];
    if first + extents == 0 {
        return Ok(Plan {
            meta,
            line,
            shape: Shape::Header,
        });
    }
    if let Some(reply) = reply {
        line[0] = reply;
    }
    let mut at = first;
    for extent in &message.extents {
        line[at..at + 2].copy_from_slice(&extent.descriptor().pack());
        at += 2;
    }
    if let Some(words) = message.short() {
        for word in words {
            line[at] = *word;
            at += 1;
        }
    }
    Ok(Plan {
        meta,
        line,
        shape: Shape::Line,
    })
}

impl Plan {
    /// That of a message which is a short header, and perhaps a reply word and one extent, and
    /// nothing else; nothing, if that does not fit into one line.
    #[inline(always)]
    pub(super) fn short(
        message: &Message,
        kind: Kind,
        reply: Option<u64>,
        extent: Option<&Extent>,
    ) -> Option<Self> {
        let header = message.header_len();
        let before = 8 * usize::from(reply.is_some()) + 16 * usize::from(extent.is_some());
        if before > 0 && header > FIRST_LINE - before {
            return None;
        }
        let meta = Meta::plain(Plain {
            kind,
            header,
            extents: usize::from(extent.is_some()),
            reply: reply.is_some(),
            structure: extent.is_some() && message.structure,
        });
        // Words past the header's end are written too, and not read.
        let words = message.words();
        let extent = extent.map(|e| e.descriptor().pack());
        let (line, shape) = match (reply, extent) {
            (None, None) => ([0; 6], Shape::Header),
            (Some(r), None) => (
                [r, words[0], words[1], words[2], words[3], words[4]],
                Shape::Line,
            ),
            (None, Some([page, len])) => ([page, len, 0, 0, 0, 0], Shape::One),
            (Some(r), Some([page, len])) => {
                ([r, page, len, words[0], words[1], words[2]], Shape::Line)
            }
        };
        Some(Self { meta, line, shape })
    }
}

/// Inline bytes of a slot's first line.
const FIRST_LINE: usize = inline_capacity(1);

#[cold]
fn plan_rich(
    member: &Arc<Member>,
    message: &mut Message,
    kind: Kind,
    reply: u64,
    capacity: usize,
) -> Result<Plan, AllocateError> {
    let mut meta = Meta {
        header: u16::try_from(message.header_len()).unwrap_or(u16::MAX),
        extents: u16::try_from(message.extents.len()).unwrap_or(u16::MAX),
        rights: u8::try_from(message.rights().len()).unwrap_or(u8::MAX),
        urgent: message.urgency_word().is_some(),
        reply: reply != 0,
        structure: message.structure,
        sealed: message.laid_token().is_some(),
        ..Meta::new(kind)
    };
    if meta.inline_bytes() > capacity || message.page().is_some() {
        spill(member, message)?;
        meta.spilled = true;
    }
    Ok(Plan {
        meta: meta.pack(),
        line: [reply, 0, 0, 0, 0, 0],
        shape: Shape::Rich,
    })
}

/// Puts header and descriptors into an extent.
#[cold]
fn spill(member: &Arc<Member>, message: &mut Message) -> Result<(), AllocateError> {
    let header = message.header().len();
    let at = header.next_multiple_of(8);
    let end = at + 8 * (message.rights().len() + 2 * message.extents.len());
    if message.page().is_none_or(|page| page.capacity() < end) {
        let mut extent = extent::allocate(member, end)?;
        extent[..header].copy_from_slice(message.header());
        message.set_long(Long::Page(extent), header);
    }
    let words: Vec<u64> = message
        .rights()
        .iter()
        .map(|r| r.word().pack())
        .chain(message.extents.iter().flat_map(|e| e.descriptor().pack()))
        .collect();
    if let Long::Page(page) = &mut message.rest_mut().long {
        // Cannot fail: the capacity was checked.
        let _ = page.set_len(end);
        for (slot, word) in page[at..].chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
    }
    Ok(())
}

impl Plan {
    /// Writes the message into a claimed slot.
    #[inline(always)]
    pub(super) fn write(&self, message: &Message, claim: &Claim<'_, '_>) {
        match self.shape {
            // Words past the header's end are written too, and not read.
            Shape::Header => claim.fill(self.meta, message.words()),
            Shape::One => {
                let ([page, len, ..], words) = (self.line, message.words());
                let line = [page, len, words[0], words[1], words[2], words[3]];
                claim.fill(self.meta, &line);
            }
            Shape::Line => claim.fill(self.meta, &self.line),
            Shape::Rich => {
                claim.fill(self.meta, &self.line);
                Self::write_rich(message, claim, usize::from(self.line[0] != 0));
            }
        }
    }

    #[cold]
    fn write_rich(message: &Message, claim: &Claim<'_, '_>, mut at: usize) {
        let mut put = |words: &[u64]| {
            claim.write(at, words);
            at += words.len();
        };
        if let Some(urgency) = message.urgency_word() {
            put(&[urgency]);
        }
        if let Some(token) = message.laid_token() {
            put(&[token]);
        }
        if let Some(page) = message.page() {
            return put(&page.descriptor().pack());
        }
        message
            .rights()
            .iter()
            .for_each(|r| put(&[r.word().pack()]));
        message
            .extents
            .iter()
            .for_each(|e| put(&e.descriptor().pack()));
        match message.short() {
            Some(words) => put(words),
            None => message
                .header()
                .chunks(8)
                .for_each(|chunk| put(&[word_of(chunk)])),
        }
    }
}

/// Reads a slot that holds nothing but a reply word, extents and a short header, which is
/// what most slots hold, and notes the extents as ours; `None` for the others.
#[inline]
pub(super) fn read_plain(
    member: &Arc<Member>,
    slot: &Slot<'_>,
    message: &mut Message,
) -> Option<Origin> {
    let meta = Meta::read_plain(slot.meta())?;
    let words = usize::from(meta.reply) + 2 * meta.extents;
    if meta.header > INLINE_HEADER || words + meta.header.div_ceil(8) > slot.inline_words() {
        return None;
    }
    message.structure = meta.structure;
    if words == 0 {
        // Words past the header's end are read too, and not shown.
        message.set_words(meta.header, slot.first_line());
        return Some(Origin::new(meta.kind, 0));
    }
    let mut reply = [0];
    if meta.reply {
        slot.read(0, &mut reply);
    }
    for at in (usize::from(meta.reply)..words).step_by(2) {
        let mut descriptor = [0; 2];
        slot.read(at, &mut descriptor);
        message.extents.extend(take_extent(member, descriptor));
    }
    slot.read(words, message.header_words(meta.header));
    Some(Origin::new(meta.kind, reply[0]))
}

/// The extent that two words of a slot tell of, noted as ours; `None` if they tell of none.
#[inline(always)]
pub(super) fn take_extent(member: &Arc<Member>, words: [u64; 2]) -> Option<Extent> {
    let descriptor = sound(member, words)?;
    probe!(ReceiveDescriptor);
    hold(member, &descriptor);
    let extent = Extent::taken(member, descriptor);
    probe!(ReceiveHeld);
    Some(extent)
}

/// Notes that an extent is ours. It was checked to lie in the pool.
#[inline]
pub(super) fn hold(member: &Member, d: &Descriptor) {
    let _ = member.row().hold(d.page, d.generation);
    if let Some(guard) = &member.guard {
        guard.arrived(d.page);
    }
}

/// The extent of a message that has nothing but that and a header of a word at most, and the
/// header; `None` for any other message.
#[inline]
pub(super) fn read_extent(member: &Member, slot: &Slot<'_>) -> Option<(Descriptor, u64)> {
    let meta = Meta::read_plain(slot.meta())?;
    if meta.reply || meta.extents != 1 || meta.header > size_of::<u64>() {
        return None;
    }
    let mut words = [0; 3];
    slot.read(0, &mut words);
    let [page, len, header] = words;
    // Bytes past the header's end are not shown.
    let shown = match meta.header {
        8 => u64::MAX,
        fewer => (1 << (8 * fewer)) - 1,
    };
    let header = header & shown;
    Some((sound(member, [page, len])?, header))
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
    /// By which sealed memory is found in the receiving process.
    pub(crate) laid: Option<u64>,
    pub(crate) rights: SmallVec<[RightWord; 2]>,
    pub(crate) extents: SmallVec<[Descriptor; 2]>,
    /// The header extent, if there is one.
    pub(crate) page: Option<Descriptor>,
    structure: bool,
    header: HeaderWords,
}

enum HeaderWords {
    Inline(Vec<u8>),
    InPage(usize),
}

impl Contents {
    /// Reads a published slot of a port of ours, or of a dead space whose host we are.
    pub(crate) fn read(member: &Member, slot: &Slot<'_>) -> Self {
        Self::read_by(member, slot, member.guard.is_none())
    }

    /// Reads a published slot of any port, whose message may be taken, and its memory used
    /// again, meanwhile.
    pub(super) fn peek(member: &Member, slot: &Slot<'_>) -> Self {
        Self::read_by(member, slot, false)
    }

    /// `mapped`: a header extent is read where it is mapped, which is faster; else by the file,
    /// which may be done where it is closed, and leaves a hole a hole.
    fn read_by(member: &Member, slot: &Slot<'_>, mapped: bool) -> Self {
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
        let laid = meta.sealed.then(&mut next);
        let mut contents = Self {
            kind: meta.kind,
            reply,
            urgency,
            laid,
            rights: SmallVec::new(),
            extents: SmallVec::new(),
            page: None,
            structure: meta.structure,
            header: HeaderWords::InPage(0),
        };
        if meta.spilled {
            // Free already, if this repeats a drain during which its process died: then all is
            // done.
            contents.page = sound(member, [next(), next()]).filter(|d| {
                let word = member.tables().alloc.read(d.page);
                word.state() == Alloc::Used && word.generation() == d.generation
            });
            contents.read_page(member, &meta, mapped);
            return contents;
        }
        // A correct member never writes more than fits; of garbage we read what is there.
        for _ in 0..usize::from(meta.rights).min(slot.inline_words()) {
            contents.rights.extend(RightWord::unpack(next()));
        }
        for _ in 0..usize::from(meta.extents).min(slot.inline_words() / 2) {
            contents.extents.extend(sound(member, [next(), next()]));
        }
        let at = meta.descriptor_words().min(slot.inline_words());
        let len = usize::from(meta.header).min((slot.inline_words() - at) * 8);
        let mut words = [0; MOST_WORDS];
        slot.read(at, &mut words[..len.div_ceil(8)]);
        contents.header =
            HeaderWords::Inline(bytemuck::cast_slice::<u64, u8>(&words)[..len].to_vec());
        contents
    }

    /// Reads the records of a header extent behind the header. The reader does not own the extent
    /// yet, so it copies the bytes as words that other spaces may write, then checks them.
    fn read_page(&mut self, member: &Member, meta: &Meta, mapped: bool) {
        let Some(page) = self.page else { return };
        let len = usize::try_from(page.len)
            .unwrap_or(0)
            .min(page.size.bytes());
        let header = usize::from(meta.header).min(len);
        self.header = HeaderWords::InPage(header);
        let at = header.next_multiple_of(8).min(len);
        let descriptors = 8 * (usize::from(meta.rights) + 2 * usize::from(meta.extents));
        let mut bytes = vec![0; descriptors.min(len - at)];
        if mapped {
            let words = member.region.words(page.page, page.size.bytes());
            bulk::load_at(words, at, &mut bytes);
        } else {
            let read = member.region.peek(page.page, at, &mut bytes);
            bytes.truncate(read);
        }
        let mut words = bytes.chunks_exact(8).map(word_of);
        for _ in 0..meta.rights {
            self.rights.extend(words.next().and_then(RightWord::unpack));
        }
        for _ in 0..meta.extents {
            let pair = words.next().zip(words.next());
            self.extents
                .extend(pair.and_then(|(a, b)| sound(member, [a, b])));
        }
    }

    /// The urgency that a published slot of a port of ours says.
    pub(super) fn urgency(slot: &Slot<'_>) -> Option<u64> {
        let meta = Meta::unpack(slot.meta());
        let mut word = [0];
        meta.urgent.then(|| {
            slot.read(usize::from(meta.reply), &mut word);
            word[0]
        })
    }

    /// Every extent that travels, the header's included.
    pub(crate) fn all_extents(&self) -> impl Iterator<Item = &Descriptor> {
        self.extents.iter().chain(&self.page)
    }

    /// The message, once all of it is ours.
    pub(super) fn into_message(self, member: &Arc<Member>, message: &mut Message) {
        message
            .extents
            .extend(self.extents.iter().map(|d| Extent::taken(member, *d)));
        message.structure = self.structure;
        if !self.rights.is_empty() {
            message
                .rest_mut()
                .rights
                .extend(self.rights.iter().filter_map(|w| Right::taken(member, *w)));
        }
        if let Some(urgency) = self.urgency {
            message.set_urgency_word(urgency);
        }
        if let Some(token) = self.laid {
            message.put_sealed(member.part::<SealedStore>().take(token));
        }
        match (self.header, self.page) {
            // Cannot fail: a slot holds no more than a header may.
            (HeaderWords::Inline(bytes), _) => drop(message.set_header(&bytes)),
            (HeaderWords::InPage(len), Some(page)) => {
                message.set_long(Long::Page(Extent::taken(member, page)), len)
            }
            (HeaderWords::InPage(_), None) => {}
        }
    }
}

/// A descriptor that lies in the pool, or nothing.
#[inline]
pub(super) fn sound(member: &Member, words: [u64; 2]) -> Option<Descriptor> {
    let pages = member.tables().alloc.pages();
    Descriptor::unpack(words).filter(|d| d.page as usize + d.size.pages() <= pages)
}

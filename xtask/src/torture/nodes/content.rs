//! What stands in a message: all of it follows from its stream and its number, so its receiver can
//! tell whether it is what was sent.
//!
//! ```text
//! header: [stream][number][bytes of a pattern]
//! extent: a pattern of one page again and again, whose first word names the page
//! ```

use super::super::random::Random;
use portolan::{Domain, Message};
use portolan_abi::limits::PAGE;

/// Bytes of the shortest header.
const LEAST: usize = 16;
/// Bytes of the other headers: in a line, in a slot, in an extent of their own.
const HEADERS: [usize; 4] = [16, 48, 300, 4096];
/// Bytes of a short extent, of one that goes as a transfer, and of one that may be announced.
const EXTENTS: [(usize, usize); 3] = [(1, 9_000), (20_000, 300_000), (1 << 20, 3 << 20)];

/// How much a message is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// Whatever follows from its number.
    Any,
    /// Only the shortest header.
    Least,
}

/// What a message is.
struct Shape {
    seed: u64,
    header: usize,
    extents: Vec<usize>,
}

impl Shape {
    /// Of a number of a stream. An answer is another message than what it answers.
    fn new(stream: u64, number: u64, is_answer: bool, size: Size) -> Self {
        let mut random = Random::new(stream << 40 ^ number << 1 ^ u64::from(is_answer));
        let seed = random.next();
        if size == Size::Least {
            let (header, extents) = (LEAST, Vec::new());
            return Self {
                seed,
                header,
                extents,
            };
        }
        let header = HEADERS[random.below(HEADERS.len())];
        let (count, kind) = match random.below(100) {
            0..60 => (0, 0),
            60..88 => (1 + random.below(3), 0),
            88..98 => (1 + random.below(2), 1),
            _ => (1, 2),
        };
        let (least, most) = EXTENTS[kind];
        let extents = (0..count).map(|_| least + random.below(most - least));
        Self {
            seed,
            header,
            extents: extents.collect(),
        }
    }

    fn header(&self, stream: u64, number: u64) -> Vec<u8> {
        let mut header = Vec::with_capacity(self.header);
        header.extend(stream.to_le_bytes());
        header.extend(number.to_le_bytes());
        let pattern = pattern(self.seed);
        header.extend(&pattern[..self.header - LEAST]);
        header
    }

    /// The pattern of its `nth` extent.
    fn pattern(&self, nth: usize) -> [u8; PAGE] {
        pattern(self.seed.rotate_left(8) ^ nth as u64)
    }
}

/// A page that follows from a seed.
fn pattern(seed: u64) -> [u8; PAGE] {
    let mut random = Random::new(seed);
    let mut page = [0; PAGE];
    for word in page.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    page
}

/// What stands at the beginning of a page.
fn name_of_page(pattern: &[u8; PAGE], page: usize) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = *pattern;
    (u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ page as u64).to_le_bytes()
}

fn fill(bytes: &mut [u8], pattern: &[u8; PAGE]) {
    for (page, part) in bytes.chunks_mut(PAGE).enumerate() {
        part.copy_from_slice(&pattern[..part.len()]);
        let name = name_of_page(pattern, page);
        let len = part.len().min(8);
        part[..len].copy_from_slice(&name[..len]);
    }
}

/// Where the first wrong byte is.
fn wrong(bytes: &[u8], pattern: &[u8; PAGE]) -> Option<usize> {
    for (page, part) in bytes.chunks(PAGE).enumerate() {
        let name = name_of_page(pattern, page);
        let len = part.len().min(8);
        if part[..len] != name[..len] || part[len..] != pattern[len..part.len()] {
            let is = |at: usize| if at < len { name[at] } else { pattern[at] };
            let at = (0..part.len()).find(|at| part[*at] != is(*at));
            return Some(page * PAGE + at.unwrap_or(0));
        }
    }
    None
}

/// The message with a number of a stream; `None` if the domain has no memory for it now.
pub(super) fn compose(
    domain: &Domain,
    (stream, number): (u64, u64),
    is_answer: bool,
    size: Size,
) -> Option<Message> {
    let shape = Shape::new(stream, number, is_answer, size);
    let header = shape.header(stream, number);
    // In place or not: half of each.
    let mut message = match shape.seed & 1 {
        0 => Message::new(&header).ok()?,
        _ => domain.message(&header).ok()?,
    };
    for (nth, bytes) in shape.extents.iter().enumerate() {
        let mut extent = domain.allocate(*bytes).ok()?;
        fill(&mut extent, &shape.pattern(nth));
        message.push(extent).ok()?;
    }
    Some(message)
}

/// The stream and the number of a message, by its header.
pub(super) fn name(message: &Message) -> Option<(u64, u64)> {
    let header = message.header();
    let word = |at: usize| Some(u64::from_le_bytes(header.get(at..at + 8)?.try_into().ok()?));
    Some((word(0)?, word(8)?))
}

/// Whether a message is what was sent; what is wrong with it, if not.
pub(super) fn check(
    message: &Message,
    (stream, number): (u64, u64),
    is_answer: bool,
    size: Size,
) -> Result<(), String> {
    let shape = Shape::new(stream, number, is_answer, size);
    let said = format!("number {number} of stream {stream}");
    if *message.header() != *shape.header(stream, number) {
        return Err(format!("{said} has another header than was sent"));
    }
    let lengths: Vec<usize> = message
        .extents()
        .iter()
        .map(|extent| extent.len())
        .collect();
    if lengths != shape.extents {
        let sent = shape.extents;
        return Err(format!(
            "{said} has extents of {lengths:?} bytes, not {sent:?}"
        ));
    }
    for (nth, extent) in message.extents().iter().enumerate() {
        if let Some(at) = wrong(extent, &shape.pattern(nth)) {
            let len = extent.len();
            return Err(format!(
                "{said} has a wrong byte at {at} of {len} in extent {nth}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_composed_is_whole_and_one_changed_byte_is_found() {
        let domain = Domain::private().unwrap();
        for number in 1..60 {
            for is_answer in [false, true] {
                let name_of = (9, number);
                let mut message = compose(&domain, name_of, is_answer, Size::Any).unwrap();
                assert_eq!(name(&message), Some(name_of));
                assert_eq!(check(&message, name_of, is_answer, Size::Any), Ok(()));
                assert!(check(&message, (9, number + 1), is_answer, Size::Any).is_err());
                if let Some(extent) = message.extents_mut().last_mut() {
                    let last = extent.len() - 1;
                    extent[last] ^= 1;
                    let said = check(&message, name_of, is_answer, Size::Any).unwrap_err();
                    assert!(said.contains(&format!("wrong byte at {last}")), "{said}");
                }
            }
        }
        let least = compose(&domain, (1, 1), false, Size::Least).unwrap();
        assert_eq!((least.header().len(), least.extents().len()), (LEAST, 0));
        assert_eq!(check(&least, (1, 1), false, Size::Least), Ok(()));
    }
}

//! Fills every extent and header so that a page with two owners shows.
//!
//! ```text
//! extent: [seed][length] ... [seed ^ page number] at each page ... [!seed]
//! header: [seed][bytes that follow from it]
//! ```

use portolan_abi::limits::PAGE;

/// The shortest extent that can be stamped.
pub(crate) const LEAST: usize = 32;

fn put(bytes: &mut [u8], at: usize, word: u64) {
    if let Some(place) = bytes.get_mut(at..at + 8) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

fn get(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The words of an extent of `len` bytes with this seed.
fn words(seed: u64, len: usize) -> impl Iterator<Item = (usize, u64)> {
    let pages = (1..len.div_ceil(PAGE))
        .map(|p| p * PAGE)
        .filter(move |at| at + 16 <= len);
    let inner = pages.map(move |at| (at, seed ^ at as u64));
    [(0, seed), (8, len as u64)]
        .into_iter()
        .chain(inner)
        .chain([(len - 8, !seed)])
}

/// Stamps an extent of at least [`LEAST`] bytes.
pub(crate) fn stamp(bytes: &mut [u8], seed: u64) {
    for (at, word) in words(seed, bytes.len()) {
        put(bytes, at, word);
    }
}

/// What is wrong with a stamped extent.
pub(crate) fn verify(bytes: &[u8]) -> Result<(), String> {
    let seed = get(bytes, 0).unwrap_or(0);
    match words(seed, bytes.len().max(LEAST)).find(|(at, word)| get(bytes, *at) != Some(*word)) {
        None => Ok(()),
        Some((at, word)) => Err(format!(
            "an extent of {} bytes with seed {seed:#x} holds {:#x?} at {at}, not {word:#x}",
            bytes.len(),
            get(bytes, at)
        )),
    }
}

fn byte(seed: u64, at: usize) -> u8 {
    seed.to_le_bytes()[at % 8] ^ at.to_le_bytes()[0]
}

/// A header of `len` bytes; without a stamp if it is shorter than that.
pub(crate) fn header(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| byte(seed, at)).collect();
    put(&mut bytes, 0, seed);
    bytes
}

/// Whether a header is what its sender wrote.
pub(crate) fn is_whole(bytes: &[u8]) -> bool {
    get(bytes, 0).is_none_or(|seed| header(seed, bytes.len()) == bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_found() {
        for len in [LEAST, 4096, 5000, 3 << 20] {
            let mut bytes = vec![0; len];
            stamp(&mut bytes, 77);
            assert_eq!(verify(&bytes), Ok(()));
            bytes[len - 1] ^= 1;
            assert!(verify(&bytes).is_err());
        }
        for len in [0, 8, 48, 4096] {
            assert!(is_whole(&header(9, len)));
        }
        let mut bad = header(9, 100);
        bad[50] ^= 1;
        assert!(!is_whole(&bad));
    }
}

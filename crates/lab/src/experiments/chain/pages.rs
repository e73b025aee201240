//! Tells on which pages a block lies. The kernel moves memory to huge pages when it can, and not
//! when it has none to spare or is busy: blocks of 2 MiB then lie on 4 KiB pages, which are opened one
//! by one. Chains of which some have the ones and some the others say nothing of forwarders.

use std::fs;

/// Bytes of a huge page.
pub(super) const HUGE: usize = 2 << 20;

/// Whether the mapped memory at `address` lies on a huge page; none where the system does not tell.
pub(super) fn is_huge(address: usize) -> Option<bool> {
    huge_in(&fs::read_to_string("/proc/self/smaps").ok()?, address)
}

/// The same, of what the kernel says of a process's mappings.
fn huge_in(mappings: &str, address: usize) -> Option<bool> {
    let mut within = false;
    for line in mappings.lines() {
        if let Some((start, end)) = range(line) {
            within = (start..end).contains(&address);
        } else if let Some(size) = line.strip_prefix("ShmemPmdMapped:").filter(|_| within) {
            let kilobytes: usize = size.trim().strip_suffix(" kB")?.parse().ok()?;
            return Some(kilobytes > 0);
        }
    }
    None
}

/// "7f00-7f10 rw-s ...": where a mapping begins and ends.
fn range(line: &str) -> Option<(usize, usize)> {
    let (range, _) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let of = |hexadecimal| usize::from_str_radix(hexadecimal, 16).ok();
    Some((of(start)?, of(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_page_is_told_from_small_ones() {
        let mappings = "1000-2000 rw-s 0 0:1 7 /memfd:a (deleted)\nSize: 4 kB\n\
                        ShmemPmdMapped:        0 kB\n\
                        200000-400000 rw-s 0 0:1 7 /memfd:a (deleted)\nSize: 2048 kB\n\
                        ShmemPmdMapped:     2048 kB\n";
        for (address, huge) in [
            (0x1000, Some(false)),
            (0x2000, None),
            (0x20_0000, Some(true)),
            (0x3f_ffff, Some(true)),
            (0x40_0000, None),
        ] {
            assert_eq!(huge_in(mappings, address), huge, "{address:x}");
        }
        assert_eq!(huge_in("1-9 rw\nShmemPmdMapped: many\n", 2), None);
    }

    #[test]
    fn memory_of_this_process_lies_somewhere() {
        let local = 7_u64;
        // No shared memory, thus no huge page of it; or the system does not tell.
        assert_ne!(is_huge((&raw const local).addr()), Some(true));
    }
}

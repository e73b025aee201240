//! The head of a structure, damaged, then read and grown.

use crate::memory::Extents;
use arbitrary::{Result, Unstructured};
use portolan_arena::{Arena, List};

/// Of numbers alone: any bytes are one.
type Numbers = [u64; 8];

pub(super) fn run(data: &[u8]) {
    // Whatever is left undone when the bytes end is of no interest.
    let _ = play(&mut Unstructured::new(data));
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let Some(mut extents) = Extents::build::<Numbers>(|_| Ok([7; 8])) else {
        return Ok(());
    };
    while !u.is_empty() {
        match u.int_in_range(0..=3)? {
            0 => {
                let (at, bytes) = (u.int_in_range(0..=4095)?, u.bytes(8)?);
                extents.scribble(at, bytes);
            }
            1 => {
                // A pointer that is almost right, in any of the words.
                let at = 8 * u.int_in_range(0..=511)?;
                let near = u.int_in_range(-64..=9000_i32)?;
                let word = (extents.address() as u64).wrapping_add_signed(near.into());
                extents.scribble(at, &word.to_le_bytes());
            }
            2 => {
                if let Some(root) = extents.read::<Numbers>() {
                    let at = std::ptr::from_ref(root).addr();
                    assert!(extents.holds(at, size_of::<Numbers>()));
                }
            }
            _ => {
                let mut addresses = Vec::new();
                let done = extents.edit::<Numbers, _>(|root, arena| {
                    root[0] = 1;
                    fill(u, arena, &mut addresses)
                });
                for (at, bytes) in addresses {
                    assert!(extents.holds(at, bytes), "{bytes} bytes beside the extents");
                }
                done.transpose()?;
            }
        }
    }
    Ok(())
}

/// Takes memory in all the ways there are, and gives it back; where it all lay.
fn fill(u: &mut Unstructured<'_>, arena: Arena<'_>, at: &mut Vec<(usize, usize)>) -> Result<()> {
    let mut lists: Vec<List<'_, u64>> = Vec::new();
    for _ in 0..u.int_in_range(1..=24)? {
        let which = u.int_in_range(0..=7)?;
        let wanted = u.int_in_range(0..=600)?;
        let Some(list) = lists.get_mut(which) else {
            lists.push(arena.list());
            continue;
        };
        match u.int_in_range(0..=4)? {
            0 => drop(list.reserve(wanted)),
            1 => drop(list.reserve_exact(wanted)),
            2 => drop(list.extend_from_slice(&vec![9; wanted])),
            3 => drop(lists.swap_remove(which)),
            _ => {
                let huge = usize::MAX / (wanted + 1);
                assert!(list.reserve(huge).is_err() || huge < 1 << 20);
            }
        }
        at.extend(
            lists
                .iter()
                .filter(|list| list.capacity() > 0)
                .map(|list| (list.as_ptr().addr(), list.capacity() * 8)),
        );
        assert!(arena.capacity() > 0);
    }
    Ok(())
}

//! Whole blocks with the vector instructions of x86-64 (AVX2), where the processor has
//! them.
//!
//! The copies are one piece of assembly each, for the reason that [`crate::bulk`] gives:
//! the other side may be writing, and the compiler must not look into it. Twelve lanes are
//! three vectors each of `a`, `b`, `c` and `d`, in which no lane waits for another.

use crate::atomic::AtomicU64;
use core::arch::asm;
use portolan_abi::sum::{BLOCK, LANES, Lanes, Sum};

/// Below so many blocks the setting up costs more than it saves.
const LEAST: usize = 2;

/// Copies and sums whole blocks from the beginning on; how many words.
#[inline]
pub(super) fn store(words: &[AtomicU64], bytes: &[[u8; 8]], sum: &mut Sum) -> usize {
    let blocks = bytes.len().min(words.len()) / LANES;
    let Some(lanes) = lanes_for(blocks, sum) else {
        return 0;
    };
    let (to, from) = (words.as_ptr().cast_mut().cast(), bytes.as_ptr().cast());
    // SAFETY:
    // - AVX2: `lanes_for` has asked the processor.
    // - Readable: `bytes` has at least so many blocks.
    // - Writable: so has `words`, and atomics may be written through a shared reference.
    // - Races: only with other such copies and atomics, all opaque to the compiler.
    unsafe { copy_blocks(to, from, blocks, lanes) };
    blocks * LANES
}

/// The other way round.
#[inline]
pub(super) fn load(words: &[AtomicU64], bytes: &mut [[u8; 8]], sum: &mut Sum) -> usize {
    let blocks = bytes.len().min(words.len()) / LANES;
    let Some(lanes) = lanes_for(blocks, sum) else {
        return 0;
    };
    let (to, from) = (bytes.as_mut_ptr().cast(), words.as_ptr().cast());
    // SAFETY:
    // - AVX2, readable, races: as in `store`.
    // - Writable: `bytes` is an exclusive slice; nothing overlaps it for that reason.
    unsafe { copy_blocks(to, from, blocks, lanes) };
    blocks * LANES
}

/// All lanes in a word, if there are vectors to do it with.
#[inline]
pub(super) fn fold(lanes: &Lanes) -> Option<u64> {
    #[target_feature(enable = "avx2")]
    fn with_vectors(lanes: &Lanes) -> u64 {
        lanes.fold()
    }
    if !has_vectors() {
        return None;
    }
    // SAFETY: the processor has AVX2.
    Some(unsafe { with_vectors(lanes) })
}

#[inline]
fn lanes_for(blocks: usize, sum: &mut Sum) -> Option<&mut Lanes> {
    if blocks < LEAST || !has_vectors() {
        return None;
    }
    sum.blocks()
}

#[inline]
fn has_vectors() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

/// Copies `blocks` blocks, at least one, and takes them into `lanes`.
///
/// # Safety
///
/// The processor has AVX2; `from` is readable and `to` writable for so many blocks, and
/// they do not overlap.
#[inline]
unsafe fn copy_blocks(to: *mut u8, from: *const u8, blocks: usize, lanes: &mut Lanes) {
    // SAFETY:
    // - Touches `blocks` times 96 bytes from `from` and `to`, which the caller vouches for.
    // - `lanes` are twelve vectors, one array after another (`repr(C)`), and exclusive.
    // - AVX2: the caller vouches for it; the upper halves are left as zeros.
    unsafe {
        asm!(
            "vmovdqu ymm3, [{lanes}]",
            "vmovdqu ymm4, [{lanes} + 32]",
            "vmovdqu ymm5, [{lanes} + 64]",
            "vmovdqu ymm6, [{lanes} + 96]",
            "vmovdqu ymm7, [{lanes} + 128]",
            "vmovdqu ymm8, [{lanes} + 160]",
            "vmovdqu ymm9, [{lanes} + 192]",
            "vmovdqu ymm10, [{lanes} + 224]",
            "vmovdqu ymm11, [{lanes} + 256]",
            "vmovdqu ymm12, [{lanes} + 288]",
            "vmovdqu ymm13, [{lanes} + 320]",
            "vmovdqu ymm14, [{lanes} + 352]",
            "2:",
            "vmovdqu ymm0, [{from} + {at}]",
            "vmovdqu ymm1, [{from} + {at} + 32]",
            "vmovdqu ymm2, [{from} + {at} + 64]",
            "vmovdqu [{to} + {at}], ymm0",
            "vmovdqu [{to} + {at} + 32], ymm1",
            "vmovdqu [{to} + {at} + 64], ymm2",
            "vpaddq ymm3, ymm3, ymm0",
            "vpaddq ymm4, ymm4, ymm1",
            "vpaddq ymm5, ymm5, ymm2",
            "vpshufd ymm0, ymm0, 0xb1",
            "vpshufd ymm1, ymm1, 0xb1",
            "vpshufd ymm2, ymm2, 0xb1",
            "vpaddq ymm6, ymm6, ymm3",
            "vpaddq ymm7, ymm7, ymm4",
            "vpaddq ymm8, ymm8, ymm5",
            "vpaddq ymm9, ymm9, ymm0",
            "vpaddq ymm10, ymm10, ymm1",
            "vpaddq ymm11, ymm11, ymm2",
            "vpaddq ymm12, ymm12, ymm9",
            "vpaddq ymm13, ymm13, ymm10",
            "vpaddq ymm14, ymm14, ymm11",
            "add {at}, 96",
            "cmp {at}, {end}",
            "jne 2b",
            "vmovdqu [{lanes}], ymm3",
            "vmovdqu [{lanes} + 32], ymm4",
            "vmovdqu [{lanes} + 64], ymm5",
            "vmovdqu [{lanes} + 96], ymm6",
            "vmovdqu [{lanes} + 128], ymm7",
            "vmovdqu [{lanes} + 160], ymm8",
            "vmovdqu [{lanes} + 192], ymm9",
            "vmovdqu [{lanes} + 224], ymm10",
            "vmovdqu [{lanes} + 256], ymm11",
            "vmovdqu [{lanes} + 288], ymm12",
            "vmovdqu [{lanes} + 320], ymm13",
            "vmovdqu [{lanes} + 352], ymm14",
            "vzeroupper",
            to = in(reg) to,
            from = in(reg) from,
            at = inout(reg) 0_usize => _,
            end = in(reg) blocks * BLOCK,
            lanes = in(reg) core::ptr::from_mut(lanes),
            out("xmm0") _, out("xmm1") _, out("xmm2") _,
            out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _,
            out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _,
            options(nostack),
        );
    };
}

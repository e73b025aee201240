//! Every target, without a fuzzer: with noise, and with what was found before.

use portolan_fuzz::TARGETS;
use std::collections::BTreeSet;
use std::path::Path;

/// Inputs of noise for each target: enough to see that it works.
const ROUNDS: u64 = 300;

/// A pseudo-random word.
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

#[test]
fn every_target_stands_noise() {
    for (name, target) in TARGETS {
        let mut seed = 0x9e37_79b9_7f4a_7c15;
        for round in 0..ROUNDS {
            let len = next(&mut seed) % 40 * (round % 30);
            let words = (0..len.div_ceil(8)).flat_map(|_| {
                let word = next(&mut seed);
                // Small numbers too, which mean more.
                let small = word
                    & if word >> 63 == 0 {
                        0x0f0f_0f0f_0f0f_0f0f
                    } else {
                        u64::MAX
                    };
                small.to_le_bytes()
            });
            target(&words.collect::<Vec<_>>());
        }
        println!("{name}: {ROUNDS} inputs");
    }
}

#[test]
fn what_was_found_before_stays_mended() {
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("found");
    for (name, target) in TARGETS {
        for file in std::fs::read_dir(found.join(name))
            .into_iter()
            .flatten()
            .flatten()
        {
            println!("{}", file.path().display());
            target(&std::fs::read(file.path()).unwrap());
        }
    }
}

#[test]
fn every_file_is_a_target() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/targets");
    let files: BTreeSet<_> = std::fs::read_dir(sources)
        .unwrap()
        .map(|f| {
            f.unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    let targets: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(files, targets);
}

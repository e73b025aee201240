//! One target, named by the environment, under LLVM's fuzzer. Built and run by
//! `cargo xtask fuzz`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

static TARGET: OnceLock<portolan_fuzz::Target> = OnceLock::new();

fuzz_target!(init: {
    let name = std::env::var(portolan_fuzz::CHOICE).unwrap_or_default();
    let Some((_, target)) = portolan_fuzz::TARGETS.iter().find(|(n, _)| *n == name) else {
        let names: Vec<_> = portolan_fuzz::TARGETS.iter().map(|(n, _)| *n).collect();
        eprintln!("{} names a target, one of {names:?}", portolan_fuzz::CHOICE);
        std::process::exit(2);
    };
    TARGET.get_or_init(|| *target);
}, |data: &[u8]| {
    if let Some(target) = TARGET.get() {
        target(data);
    }
});

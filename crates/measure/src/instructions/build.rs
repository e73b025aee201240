//! Describes the build on which a count of instructions depends.

use serde::Serialize;

/// The compiler and its flags, the C library, and what of the processor the program asks for.
/// Two counts may be compared if all of it is the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Build {
    /// As `rustc -V` says.
    pub rustc: &'static str,
    /// What for.
    pub target: &'static str,
    /// Flags beyond cargo's own, such as `-C target-cpu=native`.
    pub flags: &'static str,
    /// The profile, and how far it optimises.
    pub profile: &'static str,
    /// The C library that runs with it.
    pub libc: String,
    /// Extensions that the processor has and sums are made with, where it has them.
    pub processor: String,
}

impl Build {
    /// This program's, here.
    pub fn ours() -> Self {
        Self {
            rustc: env!("PORTOLAN_COUNTED_RUSTC"),
            target: env!("PORTOLAN_COUNTED_TARGET"),
            flags: env!("PORTOLAN_COUNTED_FLAGS"),
            profile: env!("PORTOLAN_COUNTED_PROFILE"),
            libc: portolan_sys::process::libc_version(),
            processor: processor(),
        }
    }

    /// A debug build counts what nobody runs.
    pub fn is_optimised(&self) -> bool {
        !cfg!(debug_assertions)
    }
}

#[cfg(target_arch = "x86_64")]
fn processor() -> String {
    use std::arch::is_x86_feature_detected as has;
    let all = [
        ("aes", has!("aes")),
        ("avx2", has!("avx2")),
        ("vaes", has!("vaes")),
        ("avx512f", has!("avx512f")),
    ];
    let there = all.iter().filter(|(_, there)| *there);
    let names: Vec<_> = there.map(|(name, _)| *name).collect();
    names.join(" ")
}

#[cfg(not(target_arch = "x86_64"))]
fn processor() -> String {
    String::new()
}

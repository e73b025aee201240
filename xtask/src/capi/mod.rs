//! `cargo xtask capi` writes the C header, and installs the C ABI below a prefix.

mod layout;

use crate::checks::{code, command, root, step};
use layout::Parts;
use std::path::Path;
use std::process::ExitCode;

/// Has the test that compares the header write it instead.
pub(crate) fn header() -> ExitCode {
    let mut test = command(&["cargo", "test", "--quiet", "-p", "portolan-capi"]);
    test.args(["--test", "header", "the_header_is_what_the_sources_say"]);
    code(step(test.env("PORTOLAN_HEADER", "write")))
}

/// Builds the shared and the static library, optimised, and installs them with all that belongs to
/// them.
pub(crate) fn install(prefix: &Path) -> ExitCode {
    // One after the other: the crate types of one build would share their file names.
    let mut built = Vec::new();
    for (kind, file) in [
        ("cdylib", "libportolan_c.so"),
        ("staticlib", "libportolan_c.a"),
    ] {
        let mut build = command(&["cargo", "rustc", "--release", "--lib"]);
        build.args(["-p", "portolan-capi", "--crate-type", kind]);
        if !step(&mut build) {
            return ExitCode::FAILURE;
        }
        built.push(target().join("release").join(file));
    }
    let parts = Parts {
        sources: &root().join("crates/capi"),
        shared: &built[0],
        archive: Some(&built[1]),
        version: env!("CARGO_PKG_VERSION"),
    };
    match layout::install(&parts, prefix) {
        Ok(()) => {
            let pkgconfig = prefix.join("lib/pkgconfig");
            println!("installed below {}", prefix.display());
            println!(
                "cc program.c $(PKG_CONFIG_PATH={} pkg-config --cflags --libs portolan)",
                pkgconfig.display()
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{} could not be written: {error}", prefix.display());
            ExitCode::FAILURE
        }
    }
}

/// Where cargo builds.
fn target() -> std::path::PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
}

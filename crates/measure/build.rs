//! Names the build: instruction counts are the same only in builds of the same kind.

use std::env::var;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTC");
    let rustc = var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(rustc).arg("-V").output();
    let version = output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
    let of = |name: &str| var(name).unwrap_or_default();
    // Cargo puts this between flags.
    let flags = of("CARGO_ENCODED_RUSTFLAGS").replace('\u{1f}', " ");
    let profile = format!("{}, opt-level {}", of("PROFILE"), of("OPT_LEVEL"));
    for (name, value) in [
        ("RUSTC", version.unwrap_or_default()),
        ("TARGET", of("TARGET")),
        ("FLAGS", flags),
        ("PROFILE", profile),
    ] {
        println!("cargo::rustc-env=PORTOLAN_COUNTED_{name}={value}");
    }
}

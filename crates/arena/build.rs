//! Names the build: what two programs must have in common to share a structure.

use std::env::var;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTC");
    let rustc = var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(rustc).arg("-vV").output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let text = text.unwrap_or_default();
    let version = text.lines().next().unwrap_or("rustc");
    // The hash tells nightlies of one version apart; the first line of `-vV` has no date.
    let commit = text
        .lines()
        .find_map(|l| l.strip_prefix("commit-hash: "))
        .map_or("", |hash| hash.get(..12).unwrap_or(hash));
    let target = var("TARGET").unwrap_or_default();
    let features = var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    println!("cargo::rustc-env=PORTOLAN_BUILD={version} {commit} {target} +{features}");
}

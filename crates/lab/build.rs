//! Names the build, for the page's head: which commit, which compiler.

use std::env::var;
use std::process::Command;

fn main() {
    // Any change of the workspace's crates makes another build; so does another commit.
    println!("cargo::rerun-if-changed=..");
    println!("cargo::rerun-if-env-changed=RUSTC");
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = said("git", &["rev-parse", "--git-path", file]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let rustc = var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let compiler = said(&rustc, &["-V"]).unwrap_or_else(|| "unknown".to_owned());
    let profile = var("PROFILE").unwrap_or_default();
    println!("cargo::rustc-env=PORTOLAN_LAB_COMMIT={}", commit());
    println!("cargo::rustc-env=PORTOLAN_LAB_COMPILER={compiler}");
    println!("cargo::rustc-env=PORTOLAN_LAB_PROFILE={profile}");
}

/// The commit, and whether the crates were changed since.
fn commit() -> String {
    let Some(commit) = said("git", &["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown (not built from a git checkout)".to_owned();
    };
    let changes = said(
        "git",
        &["--no-optional-locks", "status", "--porcelain", "--", ".."],
    );
    match changes.as_deref() {
        Some("") => commit,
        _ => format!("{commit}, changed since"),
    }
}

/// What a command printed, if it succeeded.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

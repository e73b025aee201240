//! What a release needs: packages of all crates, a Debian package, and the builds of other
//! toolchains.

use crate::checks::{FEATURES, code, command, root, step};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// Crates that are not published: only tests and checks use them.
const PRIVATE: [&str; 4] = ["portolan-sim", "portolan-testkit", "portolan-twin", "xtask"];

/// `cargo package` of all crates that are published, each built as it would be downloaded; or
/// `cargo publish`. With `quick` they are packed and not built.
pub(crate) fn publish(dry_run: bool, quick: bool) -> ExitCode {
    match unpublishable(&root()) {
        Ok(wrong) if wrong.is_empty() => {}
        Ok(wrong) => {
            wrong.iter().for_each(|line| eprintln!("{line}"));
            return ExitCode::FAILURE;
        }
        Err(error) => {
            eprintln!("the manifests cannot be read: {error}");
            return ExitCode::FAILURE;
        }
    }
    let what = if dry_run { "package" } else { "publish" };
    let mut line = vec!["cargo", what, "--workspace", "--locked"];
    PRIVATE
        .iter()
        .for_each(|private| line.extend(["--exclude", private]));
    if dry_run {
        line.push("--allow-dirty");
    }
    if quick {
        line.push("--no-verify");
    }
    code(step(&mut command(&line)))
}

/// Builds the programs without benchmarks, their pages and completions, and packs them by cargo-deb
/// into `target/debian`.
pub(crate) fn deb() -> ExitCode {
    let build = [
        "cargo",
        "build",
        "--release",
        "--no-default-features",
        "-p",
        "portolan-cli",
        "-p",
        "portolan-node",
        "--features",
        "portolan-node/zenoh",
    ];
    if !step(&mut command(&build)) {
        return ExitCode::FAILURE;
    }
    if let Err(error) = write_pages(&root().join("target/deb")) {
        eprintln!("the pages of the package could not be written: {error}");
        return ExitCode::FAILURE;
    }
    // Without debugging information, which is most of the programs.
    let pack = [
        "cargo",
        "deb",
        "-p",
        "portolan-cli",
        "--no-build",
        "--strip",
    ];
    let packed = step(&mut command(&pack));
    if !packed {
        eprintln!("if cargo has no such command: cargo install cargo-deb");
    }
    code(packed)
}

/// Manual pages and completions, as the command itself prints them.
fn write_pages(to: &Path) -> std::io::Result<()> {
    // A page of a command that is there no more would be packed, too.
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    let pages = to.join("man");
    fs::create_dir_all(&pages)?;
    let ask = |program: &str, arguments: &[&str]| {
        let output = command(&[&format!("target/release/{program}")])
            .args(arguments)
            .output()?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(std::io::Error::other(format!(
                "{program} {}: {}",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stderr)
            ))),
        }
    };
    // The node's after the command's, whose page of `node` says less.
    for program in ["portolan", "portolan-node"] {
        ask(program, &["man", "--output", &pages.to_string_lossy()])?;
    }
    for (shell, name) in [
        ("bash", "portolan.bash"),
        ("zsh", "_portolan"),
        ("fish", "portolan.fish"),
    ] {
        fs::write(to.join(name), ask("portolan", &["completions", shell])?)?;
    }
    Ok(())
}

/// The oldest compiler that the manifest names, and the other processor: both check the build.
pub(crate) fn platforms() -> ExitCode {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap_or_default();
    let Some(oldest) = oldest_compiler(&manifest) else {
        eprintln!("Cargo.toml names no rust-version");
        return ExitCode::FAILURE;
    };
    let check = [
        "check",
        "--workspace",
        "--all-targets",
        "--features",
        FEATURES,
    ];
    let toolchain = format!("+{oldest}");
    let mut old = command(&["cargo", &toolchain]);
    old.args(check).args(["--target-dir", "target/oldest"]);
    let mut other = command(&["cargo"]);
    other
        .args(check)
        .args(["--target", "aarch64-unknown-linux-gnu"]);
    let done = [step(&mut old), step(&mut other)];
    if done.contains(&false) {
        eprintln!(
            "needed: rustup toolchain install {oldest}; rustup target add aarch64-unknown-linux-gnu; a C compiler for it (Debian: gcc-aarch64-linux-gnu)"
        );
    }
    code(!done.contains(&false))
}

fn oldest_compiler(manifest: &str) -> Option<&str> {
    let line = manifest
        .lines()
        .find(|l| l.starts_with("rust-version = "))?;
    line.split('"').nth(1)
}

/// What is wrong with the manifests of the crates below `root`, a line each: what a registry shows of a
/// crate must be there, and what is published must not depend on what is not.
fn unpublishable(root: &Path) -> std::io::Result<Vec<String>> {
    let mut wrong = Vec::new();
    let workspace = fs::read_to_string(root.join("Cargo.toml"))?;
    for entry in fs::read_dir(root.join("crates"))? {
        let folder = entry?.path();
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else {
            continue;
        };
        let name = value(&manifest, "name").unwrap_or_default();
        let private = manifest.contains("\npublish = false\n");
        if private != PRIVATE.contains(&name) {
            wrong.push(format!(
                "{name}: `publish = false` and PRIVATE of xtask/src/release.rs differ"
            ));
        }
        let versioned = workspace
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} = {{ ")));
        let has_version = versioned.is_some_and(|rest| rest.contains("version = "));
        if versioned.is_some() && has_version == private {
            wrong.push(format!(
                "{name}: what is published has a version beside its path in the workspace's Cargo.toml, what is not has none"
            ));
        }
        if private {
            continue;
        }
        for key in ["description", "keywords", "categories"] {
            if value(&manifest, key).is_none() {
                wrong.push(format!("{name}: no {key}"));
            }
        }
        if !manifest.contains("\n[package.metadata.docs.rs]\n") {
            wrong.push(format!("{name}: no metadata for docs.rs"));
        }
        let readme = value(&manifest, "readme").unwrap_or("README.md");
        for file in [readme, "LICENSE-APACHE", "LICENSE-MIT"] {
            if !folder.join(file).exists() {
                wrong.push(format!("{name}: no {file}"));
            }
        }
    }
    Ok(wrong)
}

/// What stands behind `key = ` in a manifest, in quotation marks or brackets.
fn value<'m>(manifest: &'m str, key: &str) -> Option<&'m str> {
    let start = format!("{key} = ");
    let text = manifest
        .lines()
        .find_map(|line| line.strip_prefix(&start))?;
    Some(text.trim_matches('"')).filter(|text| !text.is_empty() && *text != "[]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_can_be_published_or_is_private() {
        assert_eq!(unpublishable(&root()).unwrap(), [""; 0]);
    }

    #[test]
    fn what_is_missing_is_found() {
        let root = std::env::temp_dir().join(format!("portolan-release-{}", std::process::id()));
        let folder = root.join("crates/abi");
        fs::create_dir_all(&folder).unwrap();
        fs::write(
            root.join("Cargo.toml"),
            "portolan-abi = { path = \"crates/abi\" }\n",
        )
        .unwrap();
        fs::write(folder.join("Cargo.toml"), "name = \"portolan-abi\"\n").unwrap();
        let wrong = unpublishable(&root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        let missing = |what: &str| wrong.iter().any(|line| line.contains(what));
        for what in [
            "a version",
            "description",
            "keywords",
            "docs.rs",
            "README.md",
            "LICENSE-MIT",
        ] {
            assert!(missing(what), "{what}: {wrong:?}");
        }
    }

    #[test]
    fn the_oldest_compiler_is_the_manifests() {
        assert_eq!(
            oldest_compiler("[package]\nrust-version = \"1.90\"\n"),
            Some("1.90")
        );
    }
}

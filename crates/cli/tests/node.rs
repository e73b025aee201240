//! `portolan node` is `portolan-node`, where that is.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Command, Output};

use portolan_testkit::unique;

/// Runs `portolan node` from a folder of its own, with this in PATH.
fn node(folder: &std::path::Path, path: &std::path::Path, words: &[&str]) -> Output {
    let program = folder.join("portolan");
    if !program.exists() {
        std::fs::create_dir_all(folder).unwrap();
        // A link would lead to where others lie beside it.
        std::fs::hard_link(env!("CARGO_BIN_EXE_portolan"), &program)
            .or_else(|_| std::fs::copy(env!("CARGO_BIN_EXE_portolan"), &program).map(|_| ()))
            .unwrap();
    }
    let mut command = Command::new(program);
    command.arg("node").args(words).env("PATH", path);
    command.output().expect("the binary starts")
}

#[test]
fn it_executes_what_lies_beside_it_or_in_the_path_and_else_says_how_to_build_it() {
    let folder = std::env::temp_dir().join(unique("node"));
    let (own, path) = (folder.join("own"), folder.join("path"));
    std::fs::create_dir_all(&path).unwrap();
    let missing = node(&own, &path, &["status"]);
    let error = String::from_utf8(missing.stderr).unwrap();
    assert_eq!(missing.status.code(), Some(1), "{error}");
    assert!(
        error.contains("cargo build --release -p portolan-node"),
        "{error}"
    );
    let says = |place: &std::path::Path, what: &str| {
        let program = place.join("portolan-node");
        std::fs::write(&program, format!("#!/bin/sh\necho {what} \"$@\"\nexit 7\n")).unwrap();
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(program, executable).unwrap();
    };
    // The shell of the script.
    symlink("/bin/sh", path.join("sh")).unwrap();
    says(&path, "path");
    let done = node(&own, &path, &["status", "--json", "--", "-x"]);
    assert_eq!(done.status.code(), Some(7));
    assert_eq!(
        String::from_utf8_lossy(&done.stdout),
        "path status --json -- -x\n"
    );
    says(&own, "beside");
    let done = node(&own, &path, &["up", "--help"]);
    assert_eq!(String::from_utf8_lossy(&done.stdout), "beside up --help\n");
    std::fs::remove_dir_all(&folder).unwrap();
}

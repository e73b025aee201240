//! Runs the binary.

use std::process::{Command, Output};

/// Runs `portolan` with `args` and waits for its end.
pub(crate) fn portolan(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_portolan"))
        .args(args)
        .output()
        .expect("the binary starts")
}

/// Standard output as text, after checking that the run succeeded.
#[allow(dead_code, reason = "not every test has one that succeeds")]
pub(crate) fn succeeds(args: &[&str]) -> String {
    let output = portolan(args);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{args:?}: {}\n{complaint}",
        output.status
    );
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// Programs of nodes, which the whole workspace's tests build.
#[allow(dead_code, reason = "not every test has nodes")]
pub(crate) fn needs_the_node_program() {
    for program in ["portolan-node", "portolan-node-bench"] {
        let beside = std::path::Path::new(env!("CARGO_BIN_EXE_portolan")).with_file_name(program);
        assert!(
            beside.exists(),
            "{} is not there: cargo build -p portolan-node",
            beside.display()
        );
    }
}

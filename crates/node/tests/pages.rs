//! Every command of the node has a manual page.

use std::process::{Command, Output};

fn node(arguments: &[&str]) -> Output {
    let node = Command::new(env!("CARGO_BIN_EXE_portolan-node"))
        .args(arguments)
        .output();
    node.unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = node(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The names that the command's help lists.
fn commands() -> Vec<String> {
    let help = printed(&["--help"]);
    let (_, listed) = help.split_once("Commands:\n").unwrap();
    let (listed, _) = listed.split_once("\n\n").unwrap();
    let names = listed
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = std::env::temp_dir().join(format!("portolan-node-man-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    printed(&["man", "--output", directory.to_str().unwrap()]);
    let mut files = std::fs::read_dir(&directory).unwrap().count();
    let commands = commands();
    assert!(commands.iter().any(|name| name == "up"), "{commands:?}");
    let whole = (vec!["man"], "portolan-node".to_owned());
    let each = commands
        .iter()
        .map(|name| (vec!["man", name], format!("portolan-node-{name}")));
    for (arguments, name) in std::iter::once(whole).chain(each) {
        let page = printed(&arguments);
        assert!(page.contains(&format!(".TH {name} 1 ")), "{page}");
        for part in [".SH NAME", ".SH SYNOPSIS", "Example:", "Exit codes:"] {
            assert!(page.contains(part), "{part} in {page}");
        }
        let written = std::fs::read_to_string(directory.join(format!("{name}.1")));
        assert_eq!(written.unwrap(), page);
        files -= 1;
    }
    assert_eq!(files, 0, "no page of what is no command");
    std::fs::remove_dir_all(&directory).unwrap();

    let unknown = node(&["man", "down"]);
    assert_eq!(unknown.status.code(), Some(2));
    let complaint = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(
        complaint.contains("no command `portolan node down`"),
        "{complaint}"
    );
}

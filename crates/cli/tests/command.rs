//! What holds for every command: help with an example, a manual page, completions, a version in
//! its JSON, errors that help, and an output that may be cut short.

mod support;

use std::io::Read as _;
use std::process::{Command, Stdio};

use portolan::Domain;
use support::{portolan, succeeds};

/// Every command that users see, as words.
const COMMANDS: [&str; 16] = [
    "",
    "demo",
    "demo nodes",
    "bench",
    "ls",
    "top",
    "trace",
    "node",
    "port",
    "port send",
    "port receive",
    "port call",
    "port serve",
    "doctor",
    "completions",
    "man",
];

/// A command's help, on a terminal of 80 columns.
fn help(command: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_portolan"))
        .args(command.split_whitespace())
        .arg("--help")
        .env("COLUMNS", "80")
        .env_remove("PORTOLAN_DOMAIN")
        .output()
        .expect("the binary starts");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("help is UTF-8")
}

/// The subcommands that a help lists.
fn listed(help: &str) -> Vec<&str> {
    let (_, list) = help.split_once("Commands:\n").unwrap_or_default();
    let list = list.split("\n\n").next().unwrap_or_default();
    let names = list.lines().filter_map(|line| line.strip_prefix("  "));
    names
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect()
}

#[test]
fn every_help_has_an_example_and_exit_codes_within_80_columns() {
    for command in COMMANDS {
        let help = help(command);
        let example = format!("Example:\n  portolan {command}");
        assert!(help.contains(example.trim_end()), "{help}");
        let codes = help
            .split_once("Exit codes:\n  0  ")
            .map(|(_, codes)| codes);
        assert!(
            codes.is_some_and(|codes| codes.contains("\n  1  ")),
            "{help}"
        );
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
    let asked_twice = succeeds(&["help", "port", "send", "--help"]);
    assert_eq!(asked_twice, succeeds(&["port", "send", "--help"]));
}

#[test]
fn every_command_is_looked_at_here() {
    let mut found = vec![String::new()];
    for command in COMMANDS {
        for sub in listed(&help(command)) {
            found.push(format!("{command} {sub}").trim_start().to_owned());
        }
    }
    found.sort();
    let mut known = COMMANDS.to_vec();
    known.sort();
    assert_eq!(found, known);
}

#[test]
fn a_flag_means_the_same_in_every_command() {
    /// Those that several commands have, with what they take.
    const SHARED: [&str; 7] = [
        "-d, --domain <NAME>",
        "--json",
        "--timeout <SECONDS>",
        "--user <UID>",
        "-q, --quiet",
        "--allow-user <UID>",
        "--allow-group <GID>",
    ];
    for command in COMMANDS {
        for line in help(command).lines() {
            let line = line.trim_start();
            // An option begins its line; a description is indented below it, or beside it.
            let option = line.split("  ").next().unwrap_or_default();
            for shared in SHARED {
                let (_, flag) = shared.split_once("--").expect("a flag");
                let name = flag.split(' ').next().expect("a name");
                let named = option
                    .split([' ', ','])
                    .any(|word| word == format!("--{name}"));
                if line.starts_with('-') && named {
                    assert_eq!(option, shared, "of `portolan {command}`");
                }
            }
            // A file or a directory to write has one name.
            assert!(!line.starts_with("--out "), "{line}");
        }
    }
    // The domain of what takes it by itself may be named as elsewhere.
    let domain = Domain::builder(&portolan_testkit::unique("command-flag"));
    let domain = domain.size(64 << 20).join().unwrap();
    let name = domain.name();
    for flag in ["-d", "--domain"] {
        assert!(succeeds(&["ls", flag, name]).contains(name));
        let json = succeeds(&["top", flag, name, "--json", "--interval", "0.05"]);
        assert!(json.contains(name), "{json}");
    }
    assert_eq!(portolan(&["ls", name, "-d", name]).status.code(), Some(2));
}

#[test]
fn help_of_what_waits_reads_well() {
    for command in ["port send", "port serve"] {
        let name = format!("help_{}", command.replace(' ', "_"));
        insta::assert_snapshot!(name, help(command));
    }
}

/// What a run prints as JSON.
fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&succeeds(args)).expect("JSON")
}

#[test]
fn every_json_has_the_version_at_its_top() {
    let name = portolan_testkit::unique("command-json");
    let domain = Domain::builder(&name).size(64 << 20).join().unwrap();
    let file = std::env::temp_dir().join(&name);
    std::fs::write(&file, b"a file for the demo").unwrap();
    let path = file.to_str().unwrap();
    let reports = [
        json(&["ls", &name, "--json"]),
        json(&["top", &name, "--json", "--interval", "0.05"]),
        json(&[
            "trace",
            &name,
            "--seconds",
            "0",
            "-o",
            "/dev/null",
            "--json",
        ]),
        json(&["doctor", "--json"]),
        json(&["demo", path, "--json"]),
    ];
    std::fs::remove_file(&file).unwrap();
    drop(domain);
    // What `port` and `bench` print is looked at beside their other tests.
    for report in reports {
        assert_eq!(report["version"], env!("CARGO_PKG_VERSION"), "{report}");
    }
    // Where events have standard output, the summary goes elsewhere.
    let domain = Domain::builder(&name).size(64 << 20).join().unwrap();
    let output = portolan(&["trace", &name, "--seconds", "0", "-o", "-", "--json"]);
    drop(domain);
    let told = String::from_utf8(output.stderr).unwrap();
    let summary = told.lines().find(|line| line.starts_with('{')).unwrap();
    let summary: serde_json::Value = serde_json::from_str(summary).unwrap();
    assert_eq!(summary["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn completions_are_scripts_that_know_commands_and_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let script = succeeds(&["completions", shell]);
        for word in ["receive", "allow-user", "portolan", "completions"] {
            assert!(script.contains(word), "{word} for {shell}");
        }
        assert!(!script.contains("__peer"), "{shell}");
    }
    assert_eq!(portolan(&["completions", "tcsh"]).status.code(), Some(2));
    // As bash understands it.
    let script = "source <(\"$0\" completions bash); COMP_WORDS=(portolan port se); COMP_CWORD=2; \
                  _portolan portolan se port; echo \"${COMPREPLY[@]}\"";
    let bash = Command::new("bash")
        .args(["-c", script, env!("CARGO_BIN_EXE_portolan")])
        .output()
        .expect("bash starts");
    assert_eq!(String::from_utf8_lossy(&bash.stdout), "send serve\n");
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = std::env::temp_dir().join(format!("portolan-man-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    succeeds(&["man", "--output", directory.to_str().unwrap()]);
    let mut files = std::fs::read_dir(&directory).unwrap().count();
    for command in COMMANDS {
        let words: Vec<&str> = command.split_whitespace().collect();
        let page = succeeds(&[&["man"], &words[..]].concat());
        let name = [&["portolan"], &words[..]].concat().join("-");
        assert!(page.contains(&format!(".TH {name} 1 ")), "{page}");
        for part in [".SH NAME", ".SH SYNOPSIS", "Example:", "Exit codes:"] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!page.contains("__peer") && !page.contains("__node"));
        let written = std::fs::read_to_string(directory.join(format!("{name}.1")));
        assert_eq!(written.unwrap(), page);
        files -= 1;
    }
    assert_eq!(files, 0, "no page of what is no command");
    std::fs::remove_dir_all(&directory).unwrap();
    let unknown = portolan(&["man", "port", "lick"]);
    assert_eq!(unknown.status.code(), Some(2));
    let complaint = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(
        complaint.contains("no command `portolan port lick`"),
        "{complaint}"
    );
}

#[test]
fn the_hidden_subcommand_stays_hidden_and_harmless() {
    assert!(!succeeds(&["--help"]).contains("__"));
    let output = Command::new(env!("CARGO_BIN_EXE_portolan"))
        .arg("__peer")
        .stdin(Stdio::null())
        .output()
        .expect("the binary starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("without a coordinator"));
}

#[test]
fn an_error_says_what_happened_whose_fault_and_what_to_do() {
    let output = portolan(&["demo", "/no/such/file"]);
    assert_eq!(output.status.code(), Some(2));
    let complaint = String::from_utf8_lossy(&output.stderr);
    for part in [
        "cannot open /no/such/file",
        "fault: the command line's",
        "to do: name a file",
    ] {
        assert!(complaint.contains(part), "{complaint}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn doctor_prints_a_table_and_json_with_one_verdict() {
    let table = succeeds(&["doctor"]);
    assert!(
        table.contains("without it") && table.contains("memfd"),
        "{table}"
    );
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let (_, told) = table.rsplit_once("\n\nverdict: ").expect("a verdict, last");
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    let json = json(&["doctor", "--json"]);
    let features = json["features"].as_array().unwrap();
    for feature in features {
        assert!(
            feature["name"].is_string() && feature["present"].is_boolean(),
            "{feature}"
        );
    }
    let verdict = &json["verdict"];
    assert_eq!(
        (&verdict["works"], &verdict["text"]),
        (&true.into(), &told.into())
    );
    for missing in verdict["without"].as_array().unwrap() {
        let feature = features.iter().find(|feature| feature["name"] == *missing);
        assert_eq!(feature.unwrap()["present"], false);
    }
}

#[test]
fn doctor_fails_where_portolan_does_not_work() {
    // Too few addresses for a domain, of however small a size.
    let doctor = "ulimit -v 60000; exec \"$0\" doctor \"$@\"";
    let run = |args: &[&str]| {
        let portolan = env!("CARGO_BIN_EXE_portolan");
        let output = Command::new("sh")
            .args(["-c", doctor, portolan])
            .args(args)
            .output();
        let output = output.expect("a shell");
        assert_eq!(output.status.code(), Some(1));
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    };
    let (table, complaint) = run(&[]);
    assert!(
        table.contains("\nverdict: Portolan does not work here, because"),
        "{table}"
    );
    assert!(
        complaint.contains("Portolan does not work here: "),
        "{complaint}"
    );
    let (json, _) = run(&["--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["verdict"]["works"], false);
    assert!(
        json["verdict"]["because"]
            .as_str()
            .unwrap()
            .contains("cannot map"),
        "{json}"
    );
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_portolan"))
        .arg("doctor")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let mut complaint = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut complaint)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(complaint, "");
}

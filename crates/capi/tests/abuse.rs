//! Every function of the header is called thousands of times with wrong handles, null pointers and
//! lengths that no memory has: each call is answered, and none crashes.
//!
//! The functions and the types of their arguments are read from the header, so one that is new is
//! called too. `tests/abuse.c` calls them, seeded, under AddressSanitizer where there is one; also by four
//! threads at once, which free what another one uses.

mod support;

use std::fmt::Write as _;
use support::{compile, here, installed, printed, room, run};

/// One letter an argument, and for a handle, or the place for one, its kind.
fn argument(text: &str, kinds: &mut Vec<String>) -> String {
    let text = text.trim();
    let (of, name) = text.rsplit_once([' ', '*']).unwrap();
    let is_pointer = text.contains('*');
    let of = of
        .trim()
        .trim_start_matches("const ")
        .trim_start_matches("struct ");
    let of = of.trim_end_matches('*').trim();
    let is_handle = handle_kinds().iter().any(|kind| kind == of);
    let kind = |kinds: &mut Vec<String>| {
        kinds.iter().position(|k| k == of).unwrap_or_else(|| {
            kinds.push(of.to_owned());
            kinds.len() - 1
        })
    };
    match (is_handle, is_pointer) {
        (true, false) => format!("h{}", kind(kinds)),
        (true, true) => format!("p{}", kind(kinds)),
        (false, true) if of == "char" => "t".to_owned(),
        (false, true) if of.starts_with("portolan_") && of.ends_with("_options") => "z".to_owned(),
        (false, true) if name == "context" => "c".to_owned(),
        (false, true) if of == "void" && text.starts_with("const") => "d".to_owned(),
        (false, true) => "o".to_owned(),
        (false, false) if of == "portolan_deadline" => "u".to_owned(),
        (false, false) if of == "portolan_when_full" => "w".to_owned(),
        (false, false) if of == "portolan_handle_signal" => "f".to_owned(),
        (false, false) if ["len", "most"].contains(&name) => "l".to_owned(),
        (false, false) => "n".to_owned(),
    }
}

/// Calls of a run, by all its threads.
const CALLS: u32 = 20_000;

/// The types that are handles: those with an `id` and nothing else.
fn handle_kinds() -> &'static [String] {
    static KINDS: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();
    KINDS.get_or_init(|| {
        let source = std::fs::read_to_string(here().join("src/kinds.rs")).unwrap();
        let names = source
            .lines()
            .filter_map(|line| line.strip_prefix("pub struct ")?.strip_suffix(" {"));
        names.map(str::to_owned).collect()
    })
}

/// The table of functions for `tests/abuse.c`.
fn table() -> String {
    let header = std::fs::read_to_string(here().join("include/portolan.h")).unwrap();
    let flat = header.replace("\n ", " ");
    let (mut table, mut kinds, mut functions) = (String::new(), Vec::new(), 0);
    for line in flat.lines().filter(|line| line.ends_with(");")) {
        let Some(rest) = line.strip_prefix("enum portolan_status ") else {
            continue;
        };
        let (name, rest) = rest.split_once('(').unwrap();
        let arguments = rest.trim_end_matches(");").split(',');
        let arguments: Vec<String> = arguments.map(|a| argument(a, &mut kinds)).collect();
        let code = arguments.join(" ");
        writeln!(
            table,
            "{{\"{name}\", (any)(void (*)(void)){name}, \"{code}\"}},"
        )
        .unwrap();
        functions += 1;
    }
    assert!(functions > 100, "only {functions} functions were found");
    assert_eq!(kinds.len(), handle_kinds().len(), "{kinds:?}");
    table
}

#[test]
fn no_call_crashes_whatever_it_is_given() {
    let prefix = installed("abuse");
    let room = room("abuse");
    std::fs::write(prefix.join("include/abuse_table.h"), table()).unwrap();
    let program = room.join("program");
    compile(&here().join("tests/abuse.c"), &prefix, &program);
    let runs: Vec<_> = [("1", 1), ("20261123", 1), ("7", 4)]
        .into_iter()
        .map(|(seed, threads)| {
            let mut command = run(&program, &prefix);
            // Of a run that is longer so many domains are lost that there are no addresses for another.
            let each = CALLS / threads;
            command.args([seed, &each.to_string(), &threads.to_string()]);
            command.stdout(std::process::Stdio::piped());
            command.stderr(std::process::Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for running in runs {
        let said = printed(&running.wait_with_output().unwrap());
        assert!(
            said.contains(&format!("{CALLS} calls were answered")),
            "{said}"
        );
        assert!(said.contains("and afterwards all is well"), "{said}");
    }
}

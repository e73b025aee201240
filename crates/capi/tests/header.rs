//! The header in the repository is what the sources say, and says of each function what it must.

use std::path::{Path, PathBuf};
use std::process::Command;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn file() -> PathBuf {
    here().join("include/portolan.h")
}

/// As cbindgen writes it from the sources.
fn written() -> String {
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml")).unwrap();
    let header = cbindgen::Builder::new()
        .with_crate(here())
        .with_config(config)
        .generate()
        .unwrap();
    let mut text = Vec::new();
    header.write(&mut text);
    String::from_utf8(text).unwrap()
}

/// With `PORTOLAN_HEADER=write` in the environment, writes the header instead: that is what
/// `cargo xtask capi --header` does.
#[test]
fn the_header_is_what_the_sources_say() {
    let written = written();
    if std::env::var_os("PORTOLAN_HEADER").is_some_and(|w| w == "write") {
        std::fs::write(file(), written).unwrap();
        return;
    }
    let there = std::fs::read_to_string(file()).unwrap_or_default();
    let differs = there.lines().zip(written.lines()).position(|(a, b)| a != b);
    assert!(
        there == written,
        "include/portolan.h is not what the sources say, from line {} on: run `cargo xtask capi --header`",
        differs.unwrap_or(there.lines().count().min(written.lines().count())) + 1
    );
}

/// Each function says from which threads it may be called; one that takes or gives handles or
/// bytes says whose they are afterwards.
#[test]
fn each_function_says_from_which_thread_and_who_owns_what() {
    let header = written();
    let mut comment = String::new();
    let mut functions = 0;
    let mut missing = Vec::new();
    for line in header.lines() {
        if line.starts_with("/**") {
            comment.clear();
        }
        comment.push_str(line);
        comment.push('\n');
        let Some(at) = line.find(" portolan_").or_else(|| line.find("*portolan_")) else {
            continue;
        };
        let is_function = !line.starts_with([' ', '*', '/', '#', 't', '}']) && line.contains('(');
        if !is_function {
            continue;
        }
        functions += 1;
        let name = line[at + 1..].split('(').next().unwrap_or_default();
        if !comment.contains("Threads: ") {
            missing.push(format!("{name}: Threads"));
        }
        let makes_or_ends = [
            "_free", "_new", "_clone", "_join", "_bind", "_attach", "_push",
        ];
        if makes_or_ends.iter().any(|word| name.contains(word)) && !comment.contains("Owns: ") {
            missing.push(format!("{name}: Owns"));
        }
        comment.clear();
    }
    assert!(missing.is_empty(), "{missing:?}");
    assert!(functions > 100, "only {functions} functions were found");
}

/// Nothing but what the headers include themselves is needed, in every language that they are for.
#[test]
fn the_headers_compile_by_themselves() {
    let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join("headers");
    std::fs::create_dir_all(&room).unwrap();
    let include = here().join("include");
    for (compiler, language, standard, text) in [
        ("cc", "c", "c11", "#include <portolan.h>\n"),
        ("c++", "c++", "c++20", "#include <portolan.h>\n"),
        ("c++", "c++", "c++20", "#include <portolan.hpp>\n"),
        (
            "c++",
            "c++",
            "c++20",
            "#define PORTOLAN_EXCEPTIONS\n#include <portolan.hpp>\n",
        ),
    ] {
        let source = room.join("alone.txt");
        std::fs::write(&source, text).unwrap();
        let compiled = Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
            .arg(format!("-std={standard}"))
            .args(["-x", language, "-I"])
            .args([&include, &source])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{standard}: {text}{said}");
    }
}

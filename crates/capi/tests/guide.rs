//! The guide's snippets in C compile without a warning, run clean under AddressSanitizer, and find
//! what they assert.

mod support;

use std::path::{Path, PathBuf};
use support::{compile, here, installed, printed, room, run};

/// What stands before a snippet that is no whole program, and after it.
const BEFORE: &str = "\
#include <portolan.h>
#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <string.h>

int main(void) {
";
const AFTER: &str = "return 0;\n}\n";

/// The blocks in C of a page, in order.
fn blocks(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == "```c" {
            let block: Vec<&str> = lines.by_ref().take_while(|l| *l != "```").collect();
            blocks.push(block.join("\n"));
        }
    }
    blocks
}

/// Those of each page of the guide.
fn snippets() -> Vec<(String, Vec<String>)> {
    let pages = here().join("../portolan/guide");
    let mut files: Vec<PathBuf> = std::fs::read_dir(pages)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    files.sort();
    let named = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        (name, blocks(&path))
    };
    files.into_iter().map(named).collect()
}

/// Compiled, as the one in Rust is: what it connects to is another process's.
#[test]
fn the_readmes_snippet_in_c_compiles() {
    let prefix = installed("readme");
    let blocks = blocks(&here().join("../../README.md"));
    assert_eq!(blocks.len(), 1, "{blocks:?}");
    let source = room("readme").join("readme.c");
    std::fs::write(&source, format!("{BEFORE}{}\n{AFTER}", blocks[0])).unwrap();
    compile(&source, &prefix, &source.with_extension("out"));
}

#[test]
fn every_snippet_in_c_compiles_and_runs() {
    let prefix = installed("guide");
    let room = room("guide");
    let mut pages = Vec::new();
    for (page, blocks) in snippets() {
        for (number, block) in blocks.iter().enumerate() {
            let whole = match block.contains("int main(") {
                true => block.clone(),
                false => format!("{BEFORE}{block}\n{AFTER}"),
            };
            let source = room.join(format!("{page}-{number}.c"));
            std::fs::write(&source, whole).unwrap();
            let program = source.with_extension("out");
            compile(&source, &prefix, &program);
            let _ = printed(&run(&program, &prefix).output().unwrap());
            pages.push(page.clone());
        }
    }
    assert_eq!(
        pages,
        ["concepts", "deaths", "from_iceoryx2", "tutorial"],
        "each of these pages has one snippet in C"
    );
}

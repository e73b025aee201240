//! Checks that hand-written `unsafe` is in the listed files of the library, and in no other.
//!
//! ARCHITECTURE says in prose what each of them is for. Comments, strings and the tests at the
//! end of a file do not count, nor do the files of tests in a crate's sources.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Files with `unsafe`, from the workspace; one that ends in `/` stands for all below it.
const LISTED: &[&str] = &[
    // Arenas: the allocator, the ways into an arena, the promises of `Handover`.
    "crates/arena/src/growth.rs",
    "crates/arena/src/handle.rs",
    "crates/arena/src/handover.rs",
    "crates/arena/src/header.rs",
    "crates/arena/src/root.rs",
    "crates/arena/src/text.rs",
    // What C gives and is given: its pointers, the tables of handles, a loan beside its publisher; in
    // the others the names of functions that C finds, and calls of `pointers`.
    "crates/capi/src/",
    // What the derives write for their callers.
    "crates/derive/src/lib.rs",
    "crates/derive/src/payload.rs",
    // Bytes become a topic's values.
    "crates/portolan/src/channel/topic/plain.rs",
    // A mapping becomes structures and slices.
    "crates/portolan/src/space/region.rs",
    // A caller promises what a handler does that interrupts a thread.
    "crates/portolan/src/signal/delivery.rs",
    "crates/portolan/src/signal/upcall.rs",
    // An extent becomes the head of an arena.
    "crates/portolan/src/structure/place.rs",
    // Ordinary memory becomes atomics.
    "crates/portolan/src/vmmc/kernel/range.rs",
    // Memory that strangers write becomes words.
    "crates/portolan/src/vmmc/place.rs",
    // Loads that the model checker compares with stores; compiled for it alone.
    "crates/shm/src/atomic/modelled.rs",
    // Copies of what others may be writing.
    "crates/shm/src/bulk.rs",
    "crates/shm/src/bulk/exact.rs",
    "crates/shm/src/bulk/summed/aes.rs",
    "crates/shm/src/bulk/summed/vector.rs",
    // The tables of a mapped region.
    "crates/shm/src/region.rs",
    // Linux, as measuring alone needs it.
    "crates/instruments/src/mqueue.rs",
    "crates/instruments/src/push.rs",
    "crates/instruments/src/step.rs",
    "crates/instruments/src/step/repeated.rs",
    "crates/instruments/src/sysv.rs",
    "crates/instruments/src/tripwire.rs",
    // Linux.
    "crates/sys/src/",
    // Tests: a process kills itself, is copied, closes descriptors that are not its own.
    "crates/testkit/src/fate.rs",
    "crates/testkit/src/orders.rs",
    "crates/testkit/src/process.rs",
    // Memory that Python sees through the buffer protocol, and where the interpreter asks for it.
    "python/src/array.rs",
    "python/src/buffer.rs",
];

/// What differs between the list and the sources below `root`, a line each.
pub(crate) fn differences(root: &Path) -> Vec<String> {
    let found = files_with_unsafe(root);
    compare(&found)
}

fn compare(found: &BTreeSet<String>) -> Vec<String> {
    let covers = |entry: &str, file: &str| {
        entry == file || (entry.ends_with('/') && file.starts_with(entry))
    };
    let unlisted = found
        .iter()
        .filter(|file| !LISTED.iter().any(|entry| covers(entry, file)))
        .map(|file| {
            format!("{file} has `unsafe` and is not listed: call what exists, or say in xtask/src/unsafe_code.rs and in ARCHITECTURE what it is for")
        });
    let vain = LISTED
        .iter()
        .filter(|entry| !found.iter().any(|file| covers(entry, file)))
        .map(|entry| {
            format!("{entry} is listed in xtask/src/unsafe_code.rs and has no `unsafe`: take it off the list")
        });
    unlisted.chain(vain).collect()
}

fn files_with_unsafe(root: &Path) -> BTreeSet<String> {
    let crates = std::fs::read_dir(root.join("crates"));
    let mut files = Vec::new();
    for entry in crates.into_iter().flatten().flatten() {
        sources(&entry.path().join("src"), &mut files);
    }
    sources(&root.join("python/src"), &mut files);
    let has = |path: &PathBuf| std::fs::read_to_string(path).is_ok_and(|text| has_unsafe(&text));
    let below = |path: PathBuf| Some(path.strip_prefix(root).ok()?.to_str()?.to_owned());
    files.into_iter().filter(has).filter_map(below).collect()
}

/// Source files below `folder`, but for those of tests.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let is_tests = path.file_stem().is_some_and(|stem| stem == "tests");
        if path.is_dir() && !is_tests {
            sources(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") && !is_tests {
            files.push(path);
        }
    }
}

/// Whether code, but for the tests at its end, says `unsafe`.
fn has_unsafe(text: &str) -> bool {
    let code = code_of(text);
    let code = match tests_at(&code) {
        Some(at) => &code[..at],
        None => &code,
    };
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.split(|c| !is_word(c)).any(|word| word == "unsafe")
}

/// Where a module of tests begins that is the last thing of a file.
fn tests_at(code: &str) -> Option<usize> {
    let mut at = 0;
    for line in code.split_inclusive('\n') {
        let next = code[at + line.len()..].trim_start();
        if line.starts_with("#[cfg(") && line.contains("test") && next.starts_with("mod ") {
            // Of one in the middle of a file the end would have to be found.
            let closed = code[at..].find("\n}").map(|end| at + end + 2);
            return closed
                .is_some_and(|end| code[end..].trim().is_empty())
                .then_some(at);
        }
        at += line.len();
    }
    None
}

/// The text with blanks in place of comments, and of what stands in strings and characters.
pub(crate) fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = token(rest);
        let (now, later) = rest.split_at(skipped.unwrap_or(first.len_utf8()));
        if skipped.is_some() {
            // Lines stay lines.
            code.extend(now.chars().filter(|c| *c == '\n'));
            code.push(' ');
        } else {
            code.push_str(now);
        }
        rest = later;
    }
    code
}

/// How long the comment, string or character is that `text` begins with, if it does.
fn token(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(comment(text));
    }
    if let Some(raw) = text.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let body = raw[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = body.find(&end).map_or(body.len(), |at| at + end.len());
        return Some(2 + hashes + length);
    }
    if text.starts_with('"') {
        return Some(quoted(text, '"'));
    }
    // A lifetime has no second quote where a character has it.
    let mut after = text.strip_prefix('\'')?.chars();
    let is_character = match after.next()? {
        '\\' => true,
        _ => after.next() == Some('\''),
    };
    is_character.then(|| quoted(text, '\''))
}

/// The length of a block comment, which may hold others.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The length of what stands in quotes, with its escapes.
fn quoted(text: &str, quote: char) -> usize {
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return at + 1;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_but_those_listed_has_unsafe() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let differences = differences(&root);
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }

    #[test]
    fn a_file_that_is_not_listed_is_found_and_one_without_need() {
        let mut found: BTreeSet<String> = LISTED
            .iter()
            .map(|entry| match entry.strip_suffix('/') {
                Some(folder) => format!("{folder}/any.rs"),
                None => (*entry).to_owned(),
            })
            .collect();
        assert_eq!(compare(&found), [""; 0]);
        found.insert("crates/portolan/src/port/send.rs".to_owned());
        found.remove("crates/shm/src/bulk.rs");
        let said = compare(&found);
        assert!(
            said[0].starts_with("crates/portolan/src/port/send.rs has"),
            "{said:?}"
        );
        assert!(
            said[1].starts_with("crates/shm/src/bulk.rs is listed"),
            "{said:?}"
        );
        assert_eq!(said.len(), 2);
    }

    #[test]
    fn a_planted_file_is_found_where_its_code_says_so() {
        let root = std::env::temp_dir().join(format!("portolan-unsafe-{}", std::process::id()));
        let folder = root.join("crates/proto/src/deep");
        std::fs::create_dir_all(folder.join("tests")).unwrap();
        std::fs::create_dir_all(root.join("crates/proto/tests")).unwrap();
        let planted = "pub fn zero() -> u8 {\n    unsafe { core::mem::zeroed() }\n}\n";
        for file in ["planted.rs", "tests.rs", "tests/planted.rs"] {
            std::fs::write(folder.join(file), planted).unwrap();
        }
        std::fs::write(root.join("crates/proto/tests/planted.rs"), planted).unwrap();
        let found = files_with_unsafe(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            ["crates/proto/src/deep/planted.rs"]
        );
    }

    #[test]
    fn comments_strings_and_tests_do_not_count() {
        for code in [
            "// unsafe\nfn a() {}",
            "/* a /* unsafe */ unsafe */ fn a() {}",
            "fn a() -> &'static str { \"an \\\" unsafe one\" }",
            "fn a() -> &'static str { r#\"unsafe \" { \"# }",
            "fn a() -> char { '\"' } // \" unsafe",
            "#![forbid(unsafe_code)]\nfn not_unsafe() {}",
            "fn a() {}\n#[cfg(all(test, not(loom)))]\nmod tests {\n    unsafe fn b() {}\n}\n",
        ] {
            assert!(!has_unsafe(code), "{code}");
        }
        for code in [
            "unsafe fn a() {}",
            "fn a<'a>(b: &'a str, c: char) { if c == '\"' { unsafe { b(\"\") } } }",
            "fn a() { r#\"\"#; unsafe {} }",
            "fn a() { b('\\''); unsafe {} }",
            "quote! { unsafe impl A for B {} }",
            "#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nunsafe fn c() {}\n",
        ] {
            assert!(has_unsafe(code), "{code}");
        }
    }
}

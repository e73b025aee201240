//! Where hand-written `unsafe` may be: in the files listed here, and in no other of the library
//! or of its programs. Code that only tests compile is left out.
//!
//! Comments and texts are taken out before the word is looked for, by a lexer that knows no more
//! of Rust than it has to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The files, and the folders (which end in `/`), that may have it. ARCHITECTURE.md says why.
const MAY: &[&str] = &[
    "crates/arena/src/growth.rs",
    "crates/arena/src/handle.rs",
    "crates/arena/src/handover.rs",
    "crates/arena/src/header.rs",
    "crates/arena/src/root.rs",
    "crates/arena/src/text.rs",
    // Not its own: what it writes for its callers.
    "crates/derive/src/lib.rs",
    "crates/portolan/src/region.rs",
    "crates/portolan/src/signal/delivery.rs",
    "crates/portolan/src/signal/upcall.rs",
    "crates/portolan/src/structure/place.rs",
    "crates/portolan/src/vmmc/kernel/range.rs",
    "crates/portolan/src/vmmc/place.rs",
    "crates/shm/src/bulk.rs",
    "crates/shm/src/bulk/",
    "crates/shm/src/region.rs",
    "crates/sys/src/",
    "fuzz/src/memory.rs",
];

/// What is wrong with a workspace: files with `unsafe` that may not have it, and entries of the
/// list that nothing needs any more.
pub(crate) fn faults(root: &Path) -> std::io::Result<Vec<String>> {
    judge(root, MAY)
}

fn judge(root: &Path, may: &[&str]) -> std::io::Result<Vec<String>> {
    let mut sources = Sources::default();
    for entry in std::fs::read_dir(root.join("crates"))? {
        sources.scan(&entry?.path().join("src"))?;
    }
    sources.scan(&root.join("fuzz/src"))?;
    let found: BTreeSet<String> = sources
        .unconfined()
        .map(|path| path.strip_prefix(root).unwrap_or(path))
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    let allows = |entry: &str, file: &str| match entry.ends_with('/') {
        true => file.starts_with(entry),
        false => file == entry,
    };
    let strangers = found
        .iter()
        .filter(|file| !may.iter().any(|entry| allows(entry, file)))
        .map(|file| {
            format!("{file} has `unsafe`, and is not listed in xtask/src/confined.rs: keep it in the files that are")
        });
    let idle = may
        .iter()
        .filter(|entry| !found.iter().any(|file| allows(entry, file)))
        .map(|entry| format!("{entry} is listed in xtask/src/confined.rs, and has no `unsafe`"));
    Ok(strangers.chain(idle).collect())
}

/// What was read of source files.
#[derive(Default)]
struct Sources {
    /// With `unsafe` outside of what only tests compile.
    with: BTreeSet<PathBuf>,
    /// Files and folders that only tests compile.
    for_tests: BTreeSet<PathBuf>,
}

impl Sources {
    fn scan(&mut self, directory: &Path) -> std::io::Result<()> {
        if !directory.is_dir() {
            return Ok(());
        }
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() {
                self.scan(&path)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                self.read(&path)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, path: &Path) -> std::io::Result<()> {
        let mut code = code_of(&std::fs::read_to_string(path)?);
        for module in take_tests(&mut code) {
            let parent = path.parent().unwrap_or(Path::new(""));
            let stem = path.file_stem().unwrap_or_default();
            let home = match stem.to_str() {
                Some("lib" | "main" | "mod") => parent.to_owned(),
                _ => parent.join(stem),
            };
            self.for_tests.insert(home.join(format!("{module}.rs")));
            self.for_tests.insert(home.join(module));
        }
        if words(&code).any(|word| word == "unsafe") {
            self.with.insert(path.to_owned());
        }
        Ok(())
    }

    fn unconfined(&self) -> impl Iterator<Item = &Path> {
        let for_tests = |path: &Path| path.ancestors().any(|p| self.for_tests.contains(p));
        let with = self.with.iter().map(PathBuf::as_path);
        with.filter(move |path| !for_tests(path))
    }
}

/// The words of code.
fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_'))
}

/// A source without its comments and without what is in its texts.
fn code_of(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            comment(rest)
        } else if next == '"' {
            text(rest)
        } else if let Some(len) = raw_text(rest).filter(|_| !ends_in_word(&code)) {
            len
        } else if next == '\'' {
            character(rest)
        } else {
            code.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        };
        code.push(' ');
        rest = &rest[skipped..];
    }
    code
}

fn ends_in_word(code: &str) -> bool {
    code.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// How long the comment is that begins here; others may lie in it.
fn comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// How long the text in quotation marks is that begins here.
fn text(rest: &str) -> usize {
    let mut escaped = true;
    for (at, byte) in rest.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// How long the raw text is that begins here, if one does.
fn raw_text(rest: &str) -> Option<usize> {
    let opening = rest.strip_prefix(['b', 'c']).unwrap_or(rest);
    let opening = opening.strip_prefix('r')?;
    let inner = opening.trim_start_matches('#');
    let marks = opening.len() - inner.len();
    let inner = inner.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(marks));
    let len = inner.find(&end).map_or(inner.len(), |at| at + end.len());
    Some(rest.len() - inner.len() + len)
}

/// How long the character is that begins here; of a lifetime, its mark alone.
fn character(rest: &str) -> usize {
    let mut inner = rest.char_indices().skip(1);
    match (inner.next(), inner.next()) {
        // What is escaped has no quotation mark in it but as its second character.
        (Some((_, '\\')), Some((at, escaped))) => {
            let from = at + escaped.len_utf8();
            rest[from..]
                .find('\'')
                .map_or(rest.len(), |end| from + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// Takes out the items that only tests compile; returns the modules among them that are files.
fn take_tests(code: &mut String) -> Vec<String> {
    let mut modules = Vec::new();
    let mut from = 0;
    while let Some(at) = code[from..].find("#[cfg(").map(|at| from + at) {
        let condition = &code[at + "#[cfg(".len()..];
        let for_tests = ["test)", "all(test,"]
            .iter()
            .any(|tests| condition.starts_with(tests));
        let end = match for_tests {
            true => item_end(code, at),
            false => at + 1,
        };
        if for_tests {
            let item = &code[at..end];
            if item.ends_with(';') {
                let all: Vec<&str> = words(item).filter(|word| !word.is_empty()).collect();
                if let [.., "mod", name] = all[..] {
                    modules.push(name.to_owned());
                }
            }
            code.replace_range(at..end, " ");
        }
        from = at + usize::from(!for_tests);
    }
    modules
}

/// Where the item ends whose attributes begin at `at`.
fn item_end(code: &str, at: usize) -> usize {
    let mut depth = 0_i32;
    for (offset, byte) in code.as_bytes()[at..].iter().enumerate() {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => {
                depth -= 1;
                if depth == 0 && *byte == b'}' {
                    return at + offset + 1;
                }
            }
            b';' if depth == 0 => return at + offset + 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap()
            .to_owned()
    }

    #[test]
    fn unsafe_code_is_in_the_listed_files_alone() {
        assert_eq!(faults(&root()).unwrap(), [""; 0]);
        assert!(MAY.is_sorted());
    }

    #[test]
    fn the_list_is_that_of_the_architecture() {
        let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
        let of_the_library = MAY.iter().filter_map(|entry| entry.strip_prefix("crates/"));
        for file in of_the_library.filter(|file| file.starts_with("portolan/")) {
            assert!(page.contains(&format!("`{file}`")), "{file}");
        }
    }

    /// A workspace of one crate.
    struct Planted(PathBuf);

    impl Planted {
        fn new(test: &str, files: &[(&str, &str)]) -> Self {
            let name = format!("portolan-confined-{test}-{}", std::process::id());
            let root = std::env::temp_dir().join(name);
            for (path, text) in files {
                let path = root.join("crates/one/src").join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(root)
        }

        fn faults(&self, may: &[&str]) -> Vec<String> {
            let faults = judge(&self.0, may).unwrap();
            let named = |fault: &String| fault.split(' ').next().unwrap_or_default().to_owned();
            faults.iter().map(named).collect()
        }
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_planted_file_is_found_and_a_listed_one_that_is_clean() {
        let planted = Planted::new(
            "found",
            &[
                ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
                ("a.rs", "fn a() { unsafe { b() } }"),
                ("b/mod.rs", "unsafe impl Send for B {}"),
                ("c.rs", "fn c() {}"),
            ],
        );
        let [a, b, c] = ["a.rs", "b/mod.rs", "c.rs"].map(|f| format!("crates/one/src/{f}"));
        assert_eq!(planted.faults(&[]), [a.as_str(), &b]);
        assert_eq!(planted.faults(&[&a, &c]), [b.as_str(), &c]);
        assert_eq!(planted.faults(&["crates/one/"]), [""; 0]);
    }

    #[test]
    fn comments_texts_and_tests_do_not_count() {
        let clean = r##"
            #![deny(unsafe_code)]
            //! unsafe { }
            /* unsafe /* unsafe */ unsafe */
            const A: &str = "unsafe \" unsafe";
            const B: &str = r#"unsafe " unsafe"#;
            const C: [char; 3] = ['"', '\'', '\\'];
            fn longer<'a>(b: &'a str) -> &'a str { "unsafe"; b }
            #[cfg(test)]
            #[allow(dead_code)]
            mod inner { fn f() { unsafe { g() } } }
            #[cfg(all(test, not(loom)))]
            fn f(a: [u8; 2]) { unsafe { g() } }
            #[cfg(test)]
            mod tests;
        "##;
        let code = [("lib.rs", clean), ("tests/mod.rs", "unsafe fn f() {}")];
        assert_eq!(Planted::new("clean", &code).faults(&[]), [""; 0]);
        // The same, with one line more behind each.
        for line in clean.lines().map(str::trim).filter(|line| !line.is_empty()) {
            // A line in the midst of an item is none that another may follow.
            if line.starts_with("#[") {
                continue;
            }
            let more = format!("{line}\nunsafe fn planted() {{}}\n");
            let planted = Planted::new("more", &[("lib.rs", &more)]);
            assert_eq!(planted.faults(&[]), ["crates/one/src/lib.rs"], "{line}");
        }
        // What is compiled without tests is no test.
        let not = [("lib.rs", "#[cfg(not(test))]\nunsafe fn f() {}")];
        assert_eq!(Planted::new("not", &not).faults(&[]).len(), 1);
        let other = [("lib.rs", "mod tests;"), ("tests.rs", "unsafe fn f() {}")];
        assert_eq!(Planted::new("other", &other).faults(&[]).len(), 1);
    }
}

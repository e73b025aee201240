//! Finds words that the project does not use any more, and says which word it uses instead.
//!
//! Names are looked at by their parts, so `Ferry`, `ferry_of` and "ferries" are all found. A word
//! that has an everyday meaning too (a *pair*, a *board*) cannot be listed: only a reader can tell
//! its meanings apart. GLOSSARY.md has the words that are in use.

use std::path::{Path, PathBuf};

/// What is not said, in the singular, and what is said.
const RETIRED: &[(&str, &str)] = &[
    ("breach", "violation"),
    ("bury", "reclaim"),
    ("commons", "shared entries"),
    ("courier", "upcall thread, or ingress"),
    ("crier", "egress"),
    ("depot", "sealed store"),
    ("desk", "inbox"),
    ("entrust", "delegate"),
    ("ferry", "egress"),
    ("introduce", "hand off"),
    ("lookout", "poller"),
    ("mediator", "copy broker"),
    ("porter", "ingress"),
    ("reception", "acceptor"),
    ("ringing", "waking: a ring is a buffer"),
    ("rope", "host connection"),
    ("rung", "woken, or fired (of a bell): a ring is a buffer"),
    ("tally", "counters"),
    ("ticket", "capability, or a count"),
    ("visit", "connect"),
    ("visitor", "client"),
    ("whoever", "the thing in the code that does it"),
];

/// Where words are looked for, below the root.
const PLACES: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CAVEATS.md",
    "CONTRIBUTING.md",
    "GLOSSARY.md",
    "crates",
    "docs",
    "examples",
    "fuzz",
    "python",
    "xtask",
];

/// Most terms that the glossary explains.
const MOST_TERMS: usize = 80;

/// The file that has to name them.
const LIST: &str = "xtask/src/words.rs";

/// Words that a file has to use, because another crate calls a thing so.
const FOREIGN: &[(&str, &str)] = &[
    ("crates/portolan/tests/domain/logged.rs", "visit"),
    ("crates/transport/src/tls/mod.rs", "ticket"),
    ("python/src/signal.rs", "visit"),
];

/// Where a retired word stands below `root`, a line each.
pub(crate) fn retired(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    PLACES
        .iter()
        .for_each(|place| texts(&root.join(place), &mut files));
    files.sort();
    let mut found = Vec::new();
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
        if name == LIST {
            continue;
        }
        for (word, instead) in RETIRED {
            if words(&name).any(|w| is(&w, word)) {
                found.push(format!("{name}: a file is called {word}: say {instead}"));
            }
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            for (word, instead) in in_line(line) {
                if FOREIGN.contains(&(&*name, word)) {
                    continue;
                }
                let number = number + 1;
                found.push(format!("{name}:{number}: {word}: say {instead}"));
            }
        }
    }
    found
}

/// What is wrong with the glossary: it has too many terms, or one twice.
pub(crate) fn glossary(root: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(root.join("GLOSSARY.md")).unwrap_or_default();
    let terms: Vec<&str> = text.lines().flat_map(terms).collect();
    let twice = (1..terms.len()).filter(|&at| terms[..at].contains(&terms[at]));
    let mut found: Vec<String> = twice
        .map(|at| format!("GLOSSARY.md: {} stands there twice", terms[at]))
        .collect();
    if terms.len() > MOST_TERMS {
        let many = terms.len();
        let instead = "explain one that a single module uses in that module's header";
        found.push(format!(
            "GLOSSARY.md: {many} terms, at most {MOST_TERMS}: {instead}"
        ));
    }
    found
}

/// The terms that a row of the glossary explains.
fn terms(row: &str) -> impl Iterator<Item = &str> {
    let row = row.strip_prefix("| **").unwrap_or_default();
    let cell = row.split_once(" |").map_or("", |(cell, _)| cell);
    cell.split("**").step_by(2).filter(|term| !term.is_empty())
}

/// Files below `place`, or itself, that people read.
fn texts(place: &Path, files: &mut Vec<PathBuf>) {
    if place.is_dir() {
        let is_built = place.file_name().is_some_and(|name| name == "target");
        let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
        if !is_built {
            entries.for_each(|entry| texts(&entry.path(), files));
        }
    } else if place
        .extension()
        .is_some_and(|e| e == "rs" || e == "md" || e == "toml" || e == "snap")
    {
        files.push(place.to_owned());
    }
}

/// The retired words of a line.
fn in_line(line: &str) -> Vec<(&'static str, &'static str)> {
    let said: Vec<String> = words(line).collect();
    let is_said = |word: &str| said.iter().any(|s| is(s, word));
    let retired = RETIRED.iter().filter(|(word, _)| is_said(word));
    retired.copied().collect()
}

/// Whether `said` is `word`, or more than one of it.
fn is(said: &str, word: &str) -> bool {
    let plural = |stem: &str, end: &str| said.strip_suffix(end) == Some(stem);
    let many = match word.strip_suffix('y') {
        Some(stem) => plural(stem, "ies"),
        None => plural(word, "s") || plural(word, "es"),
    };
    said == word || many
}

/// The words of a text in small letters; a name is taken apart at its capitals and underscores.
fn words(text: &str) -> impl Iterator<Item = String> {
    let names = text.split(|c: char| !c.is_alphabetic());
    names.flat_map(parts)
}

/// The parts of a name such as `FerryOf`.
fn parts(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut was_small = false;
    for letter in name.chars() {
        match parts.last_mut() {
            Some(part) if !(was_small && letter.is_uppercase()) => {
                part.extend(letter.to_lowercase());
            }
            _ => parts.push(letter.to_lowercase().collect()),
        }
        was_small = letter.is_lowercase();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_retired_word_is_used() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let found = retired(&root);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn the_glossary_has_few_terms_and_each_once() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let found = glossary(&root);
        assert!(found.is_empty(), "{}", found.join("\n"));

        let row = "| **unreachable**, **given up** | of a peer, *silent* |";
        assert_eq!(terms(row).collect::<Vec<_>>(), ["unreachable", "given up"]);
        assert_eq!(terms("| word | meaning |").count(), 0);
        let full = std::env::temp_dir().join(format!("portolan-terms-{}", std::process::id()));
        std::fs::create_dir_all(&full).unwrap();
        let rows = |most| (0..most).map(|n| format!("| **term {n}** | so |\n"));
        let many: String = rows(MOST_TERMS + 1).chain(rows(1)).collect();
        std::fs::write(full.join("GLOSSARY.md"), many).unwrap();
        let found = glossary(&full);
        std::fs::remove_dir_all(&full).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn a_planted_word_is_found_in_whatever_form() {
        let (word, instead) = RETIRED[0];
        let mut capital = word.to_owned();
        capital[..1].make_ascii_uppercase();
        for line in [
            format!("// the {word} of it"),
            format!("struct {capital};"),
            format!("let a_{word}_b = 1;"),
            format!("fn takeThe{capital}Away() {{}}"),
            format!("{}_MAX", word.to_uppercase()),
        ] {
            assert_eq!(in_line(&line), [(word, instead)], "{line}");
        }
        assert!(in_line(&format!("a{word}b")).is_empty());
        assert!(is("ferries", "ferry") && is("breaches", "breach") && is("porters", "porter"));
        assert!(!is("porte", "porter") && !is("port", "porter"));
    }

    #[test]
    fn a_planted_file_is_found_and_what_was_built_is_not() {
        let root = std::env::temp_dir().join(format!("portolan-words-{}", std::process::id()));
        let word = RETIRED[0].0;
        for folder in ["docs", "xtask/target"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
            std::fs::write(root.join(folder).join("a.md"), format!("one\ntwo {word}\n")).unwrap();
        }
        let found = retired(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("docs/a.md:2: "), "{found:?}");
    }
}

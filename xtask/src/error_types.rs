//! Counts the public error types of the library: few, so that their causes are worth knowing.
//!
//! Counted is each `pub` type of `crates/portolan/src` that implements `Error`, by derive or by
//! hand. What a new call cannot do belongs into the error of its room, as a cause.

use crate::unsafe_code::code_of;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The sources, below the workspace.
const SOURCES: &str = "crates/portolan/src";

/// The most that there may be.
const MOST: usize = 35;

/// What is wrong with the error types below `root`, a line each.
pub(crate) fn too_many(root: &Path) -> Vec<String> {
    let mut found = BTreeSet::new();
    collect(&root.join(SOURCES), &mut found);
    judge(&found, MOST)
}

fn judge(found: &BTreeSet<String>, most: usize) -> Vec<String> {
    let names: Vec<&str> = found.iter().map(String::as_str).collect();
    if names.is_empty() {
        return vec![format!(
            "{SOURCES} has no error types: see xtask/src/error_types.rs"
        )];
    }
    if names.len() <= most {
        return Vec::new();
    }
    vec![format!(
        "the library has {} public error types, and may have {most}: make a new one a cause of the error of its room ({})",
        names.len(),
        names.join(", ")
    )]
}

fn collect(folder: &Path, found: &mut BTreeSet<String>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs")
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            found.extend(error_types(&text));
        }
    }
}

/// The public types of a file that are errors.
fn error_types(text: &str) -> Vec<String> {
    let code = code_of(text);
    let mut names = Vec::new();
    let mut derives = false;
    for line in code.lines().map(str::trim) {
        derives |= line.starts_with("#[derive(") && line.contains("thiserror::Error");
        if let Some(name) = defined(line) {
            if std::mem::take(&mut derives) && line.starts_with("pub ") {
                names.push(name);
            }
        } else if let Some(name) = implementing(line)
            && is_public(&code, &name)
        {
            names.push(name);
        }
    }
    names
}

/// The type that a line defines.
fn defined(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words
        .iter()
        .position(|word| matches!(*word, "enum" | "struct"))?;
    // What a macro or a path has there is no definition.
    let before = &words[..at];
    let is_visibility = |word: &&str| word.starts_with("pub");
    (before.len() <= 1 && before.iter().all(is_visibility)).then(|| name_of(words.get(at + 1)?))?
}

/// The type of which a line says that it is an error.
fn implementing(line: &str) -> Option<String> {
    let (trait_, name) = line.strip_prefix("impl")?.split_once(" for ")?;
    let of = trait_
        .rsplit(|c: char| c.is_whitespace() || c == ':')
        .next()?;
    (of == "Error").then(|| name_of(&name))?
}

fn name_of(word: &&str) -> Option<String> {
    let name: String = word
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    (!name.is_empty()).then_some(name)
}

fn is_public(code: &str, name: &str) -> bool {
    let is_it = |line: &str| {
        let line = line.trim();
        line.starts_with("pub ") && defined(line).as_deref() == Some(name)
    };
    code.lines().any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_has_few_error_types() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert_eq!(too_many(&root), Vec::<String>::new());
    }

    #[test]
    fn derived_and_written_errors_are_counted_and_private_ones_are_not() {
        let text = r#"
            /// pub enum Commented
            #[derive(Debug, thiserror::Error)]
            #[non_exhaustive]
            pub enum Derived { A }
            #[derive(Debug)]
            pub struct Other;
            #[derive(Debug, thiserror::Error)]
            pub(crate) enum Private { A }
            pub struct Written<T, E> { why: E }
            impl<T, E: Error> Error for Written<T, E> {}
            impl std::error::Error for Other {}
            impl fmt::Display for Written {}
        "#;
        assert_eq!(error_types(text), ["Derived", "Written", "Other"]);
    }

    #[test]
    fn one_too_many_is_told() {
        let found = BTreeSet::from(["A".to_owned(), "B".to_owned()]);
        assert_eq!(judge(&found, 2), Vec::<String>::new());
        assert_eq!(judge(&found, 1).len(), 1);
        assert_eq!(judge(&BTreeSet::new(), 1).len(), 1);
    }
}

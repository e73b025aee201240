//! Finds the arrows between the rooms of the library: which room names what of which.
//!
//! A room is a folder of `crates/portolan/src`; a file that lies beside them is a room of its
//! own. [`ORDER`] lists them, the lowest first. A path that leads from a room to a higher one is
//! an arrow that runs up, and fails the check.
//!
//! A path is followed through re-exports to the file that defines what it names. Comments,
//! strings, items under `#[cfg(test)]` and files of tests do not count, nor what `lib.rs`
//! passes on. What no path names is not seen: a method of a value, a macro.

use crate::unsafe_code::code_of;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// The sources, below the workspace.
const SOURCES: &str = "crates/portolan/src";

/// The rooms, the lowest first.
const ORDER: &[&str] = &[
    "probes",
    "sabotage",
    "space",
    "wait",
    "port",
    "proxy",
    "schema",
    "structure",
    "trace",
    "signal",
    "channel",
    "reconnect",
    "survey",
    "directory",
    "hosting",
    "vmmc",
    "rpc",
    "bridge",
    "guide",
    "lib",
];

/// Arrows that run up all the same: from, to. This list is to become empty.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// The room of `lib.rs`, which names what it passes on: arrows from it do not count.
const ROOT: &str = "lib";

/// What the check found.
pub(crate) struct Report {
    /// The arrows, for people.
    pub(crate) table: String,
    /// What is wrong, a line each.
    pub(crate) wrong: Vec<String>,
}

/// The arrows between the rooms below `root`, and what is wrong with them.
pub(crate) fn report(root: &Path) -> Report {
    let library = Library::read(&root.join(SOURCES));
    let arrows = library.arrows();
    let mut wrong = compare(&arrows, ORDER, EXCEPTIONS);
    let rooms: BTreeSet<_> = library.files.iter().map(File::room).collect();
    for room in &rooms {
        if !ORDER.contains(room) {
            wrong.push(format!(
                "the room {room} has no place in the order of xtask/src/rooms.rs"
            ));
        }
    }
    for room in ORDER.iter().filter(|room| !rooms.contains(**room)) {
        wrong.push(format!(
            "xtask/src/rooms.rs has a room {room}, which is not there"
        ));
    }
    Report {
        table: table(&arrows, &library),
        wrong,
    }
}

/// Arrows from room to room, and what they consist of: which file names which.
type Arrows = BTreeMap<(String, String), BTreeSet<String>>;

fn compare(arrows: &Arrows, order: &[&str], exceptions: &[(&str, &str)]) -> Vec<String> {
    let height = |room: &str| order.iter().position(|known| *known == room);
    let mut wrong = Vec::new();
    for ((from, to), files) in arrows {
        let runs_up = matches!((height(from), height(to)), (Some(f), Some(t)) if f < t);
        if runs_up && !exceptions.contains(&(from, to)) {
            let files: Vec<_> = files.iter().map(String::as_str).collect();
            wrong.push(format!(
                "an arrow runs up from {from} to {to}: {}",
                files.join(", ")
            ));
        }
    }
    for (from, to) in exceptions {
        let there = arrows.contains_key(&((*from).to_owned(), (*to).to_owned()));
        let runs_up = height(from) < height(to);
        if !there || !runs_up {
            wrong.push(format!(
                "no arrow runs up from {from} to {to} any more: take it off the list in xtask/src/rooms.rs"
            ));
        }
    }
    wrong
}

/// A line a room: what it names below it, and above it.
fn table(arrows: &Arrows, library: &Library) -> String {
    let mut text = String::new();
    let width = ORDER.iter().map(|room| room.len()).max().unwrap_or(0);
    let height = |room: &str| ORDER.iter().position(|known| *known == room);
    let mut up = 0;
    for room in ORDER.iter().rev() {
        let (mut below, mut above) = (Vec::new(), Vec::new());
        for (_, to) in arrows.keys().filter(|(from, _)| from == room) {
            if height(to) > height(room) {
                above.push(to.as_str());
            } else {
                below.push(to.as_str());
            }
        }
        below.sort_by_key(|room| height(room));
        up += above.len();
        let _ = write!(text, "{room:width$} -> {}", below.join(" "));
        if !above.is_empty() {
            let _ = write!(text, "  UP: {}", above.join(" "));
        }
        text.push('\n');
    }
    let circle = library.largest_circle();
    let _ = write!(
        text,
        "{} arrows, {up} run up; {} of {} files lie in the largest circle",
        arrows.len(),
        circle.len(),
        library.files.len(),
    );
    text
}

/// The modules of the library.
struct Library {
    files: Vec<File>,
    /// By path from the crate's root: which file.
    modules: BTreeMap<Vec<String>, usize>,
}

struct File {
    /// Below the sources.
    name: String,
    module: Vec<String>,
    uses: Vec<Use>,
}

/// A path that a file has.
struct Use {
    path: Vec<String>,
    /// As what it is to be had in this module, if it is an import.
    alias: Option<String>,
    /// Whether it is passed on (`pub use`).
    passed_on: bool,
}

impl File {
    fn room(&self) -> &str {
        self.module.first().map_or(ROOT, String::as_str)
    }
}

impl Library {
    fn read(sources: &Path) -> Self {
        let mut names = Vec::new();
        collect(sources, "", &mut names);
        names.sort();
        let files = names.into_iter().map(|name| {
            let text = std::fs::read_to_string(sources.join(&name)).unwrap_or_default();
            File::new(name, &text)
        });
        Self::new(files.collect())
    }

    fn new(files: Vec<File>) -> Self {
        let modules = files.iter().enumerate();
        let modules = modules.map(|(at, f)| (f.module.clone(), at)).collect();
        Self { files, modules }
    }

    /// The file that defines what a path of `from` names, if that lies in this crate.
    fn target(&self, from: &File, path: &[String]) -> Option<usize> {
        self.definition(&self.absolute(from, path)?, 8)
    }

    /// Follows a path from the root through modules and what they pass on.
    fn definition(&self, path: &[String], passes: usize) -> Option<usize> {
        let mut module = Vec::new();
        let mut rest = path;
        while let Some((segment, later)) = rest.split_first() {
            module.push(segment.clone());
            if self.modules.contains_key(&module) {
                rest = later;
                continue;
            }
            module.pop();
            let at = *self.modules.get(&module)?;
            let file = &self.files[at];
            let import = file.uses.iter().find(|u| u.alias.as_ref() == Some(segment));
            let Some(import) = import.filter(|_| passes > 0) else {
                return Some(at);
            };
            let mut onward = self.absolute(file, &import.path)?;
            onward.extend(later.iter().cloned());
            return self.definition(&onward, passes - 1);
        }
        self.modules.get(&module).copied()
    }

    /// A path of `from` as one from the crate's root; `None` if it leads out of the crate.
    fn absolute(&self, from: &File, path: &[String]) -> Option<Vec<String>> {
        let mut absolute = from.module.clone();
        let (first, mut rest) = path.split_first()?;
        match first.as_str() {
            "crate" => absolute.clear(),
            "self" => {}
            "super" => drop(absolute.pop()),
            // A child of this module. All else is another crate's, or was imported by a path
            // that this file has as well.
            child => {
                absolute.push(child.to_owned());
                self.modules.get(&absolute)?;
            }
        }
        while rest.first().is_some_and(|s| s == "super") {
            absolute.pop();
            rest = &rest[1..];
        }
        absolute.extend(rest.iter().cloned());
        Some(absolute)
    }

    /// What each file names: pairs of files.
    fn imports(&self) -> BTreeSet<(usize, usize)> {
        let mut pairs = BTreeSet::new();
        for (at, file) in self.files.iter().enumerate() {
            for used in &file.uses {
                let Some(to) = self.target(file, &used.path) else {
                    continue;
                };
                // What a module passes on of its own parts is no import.
                let own = self.files[to].module.starts_with(&file.module);
                if to != at && !(used.passed_on && own) {
                    pairs.insert((at, to));
                }
            }
        }
        pairs
    }

    fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (from, to) in self.imports() {
            let (a, b) = (self.files[from].room(), self.files[to].room());
            if a != b && a != ROOT {
                let files = arrows.entry((a.to_owned(), b.to_owned())).or_default();
                let names = (&self.files[from].name, &self.files[to].name);
                files.insert(format!("{} names {}", names.0, names.1));
            }
        }
        arrows
    }

    /// The most files of which each can be reached from each by imports.
    fn largest_circle(&self) -> BTreeSet<usize> {
        let mut onward: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (from, to) in self.imports() {
            onward.entry(from).or_default().push(to);
        }
        let reach = |start: usize| {
            let (mut seen, mut left) = (BTreeSet::new(), vec![start]);
            while let Some(at) = left.pop() {
                for to in onward.get(&at).into_iter().flatten() {
                    if seen.insert(*to) {
                        left.push(*to);
                    }
                }
            }
            seen
        };
        let reached: Vec<_> = (0..self.files.len()).map(reach).collect();
        let circle = |at: usize| -> BTreeSet<usize> {
            let all = reached[at].iter().copied();
            all.filter(|to| reached[*to].contains(&at)).collect()
        };
        let circles = (0..self.files.len()).map(circle);
        circles.max_by_key(BTreeSet::len).unwrap_or_default()
    }
}

/// Source files below `folder`, but for those of tests.
fn collect(folder: &Path, prefix: &str, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let below = format!("{prefix}{name}");
        let stem = name.strip_suffix(".rs");
        if stem.unwrap_or(&name) == "tests" {
            continue;
        }
        if entry.path().is_dir() {
            collect(&entry.path(), &format!("{below}/"), names);
        } else if stem.is_some() {
            names.push(below);
        }
    }
}

impl File {
    fn new(name: String, text: &str) -> Self {
        let path = name.trim_end_matches(".rs");
        let mut module: Vec<_> = path.split('/').map(str::to_owned).collect();
        if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
            module.pop();
        }
        let code = code_of(text);
        let uses = Tokens(words(&code)).uses();
        Self { name, module, uses }
    }
}

/// The identifiers and signs of code; `::` is one.
fn words(code: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (word, later) = rest.split_at(length);
        words.push(word);
        rest = later.trim_start();
    }
    words
}

/// Code that is read from left to right.
struct Tokens<'t>(Vec<&'t str>);

impl Tokens<'_> {
    /// Every path that an import, or anything else, has; but for what is there for tests alone.
    fn uses(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        let mut at = 0;
        let mut passed_on = false;
        while at < self.0.len() {
            let before = at.checked_sub(1).map(|b| self.0[b]);
            match self.0[at] {
                "#" if self.is_for_tests(at) => at = self.after_item(at),
                // Not what `impl Trait + use<'a>` says.
                "use" if !self.is(at + 1, "<") => {
                    at = self.tree(at + 1, &[], passed_on, &mut uses);
                }
                "crate" | "super" | "self" if before != Some("::") && self.is(at + 1, "::") => {
                    let mut path = vec![self.0[at].to_owned()];
                    at += 1;
                    while self.is(at, "::") && self.is_name(at + 1) {
                        path.push(self.0[at + 1].to_owned());
                        at += 2;
                    }
                    let is_macro = self.is(at, "!") && !self.is(at + 1, "=");
                    if !is_macro {
                        uses.push(Use {
                            path,
                            alias: None,
                            passed_on: false,
                        });
                    }
                    continue;
                }
                "pub" => passed_on = true,
                ";" | "{" | "}" => passed_on = false,
                _ => {}
            }
            at += 1;
        }
        uses
    }

    fn is(&self, at: usize, word: &str) -> bool {
        self.0.get(at) == Some(&word)
    }

    fn is_name(&self, at: usize) -> bool {
        let first = self.0.get(at).and_then(|word| word.chars().next());
        first.is_some_and(|c| c.is_alphabetic() || c == '_')
    }

    /// Whether an attribute says that what follows is compiled for tests alone.
    fn is_for_tests(&self, at: usize) -> bool {
        let end = self.closing(at + 1);
        let attribute = &self.0[at..end.min(self.0.len())];
        attribute.get(2) == Some(&"cfg")
            && attribute.contains(&"test")
            && !attribute.windows(3).any(|w| w == ["not", "(", "test"])
    }

    /// Where what is opened at `at` is closed.
    fn closing(&self, at: usize) -> usize {
        let mut depth = 0_usize;
        for (i, word) in self.0.iter().enumerate().skip(at) {
            match *word {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return i;
                    }
                }
                _ => {}
            }
        }
        self.0.len()
    }

    /// The last word of the item whose attributes begin at `at`.
    fn after_item(&self, mut at: usize) -> usize {
        while at < self.0.len() {
            match self.0[at] {
                ";" => return at,
                "{" => {
                    let end = self.closing(at);
                    // An import's braces are followed by its end.
                    return if self.is(end + 1, ";") { end + 1 } else { end };
                }
                "(" | "[" => at = self.closing(at),
                _ => {}
            }
            at += 1;
        }
        at
    }

    /// Reads an import's tree from `at` on, below `prefix`; where it ends.
    fn tree(
        &self,
        mut at: usize,
        prefix: &[String],
        passed_on: bool,
        uses: &mut Vec<Use>,
    ) -> usize {
        let mut path = prefix.to_vec();
        let mut alias = None;
        while at < self.0.len() {
            match self.0[at] {
                "::" => {}
                "{" => {
                    at += 1;
                    while at < self.0.len() && !self.is(at, "}") {
                        at = self.tree(at, &path, passed_on, uses);
                        // Its comma; the last one need not have one.
                        at += usize::from(!self.is(at, "}"));
                    }
                    return at + 1;
                }
                "," | "}" | ";" => break,
                "as" => {
                    at += 1;
                    alias = self.0.get(at).map(|name| (*name).to_owned());
                }
                "self" if !path.is_empty() => {}
                segment => path.push(segment.to_owned()),
            }
            at += 1;
        }
        let alias = alias.or_else(|| path.last().cloned());
        uses.push(Use {
            path,
            alias,
            passed_on,
        });
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_arrow_of_the_library_runs_up() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let report = report(&root);
        assert!(report.wrong.is_empty(), "{}", report.wrong.join("\n"));
    }

    fn paths(code: &str) -> Vec<String> {
        let file = File::new("port/send.rs".to_owned(), code);
        file.uses.iter().map(|u| u.path.join("::")).collect()
    }

    #[test]
    fn paths_are_found_in_imports_and_in_code() {
        let code = "
            pub(crate) use super::{a::B as C, d::{self, E}};
            use crate::f::*;
            fn g<'a>(h: &'a crate::i::J) -> impl Sized + use<'a> { self.k(); crate::l!() }
        ";
        assert_eq!(
            paths(code),
            [
                "super::a::B",
                "super::d",
                "super::d::E",
                "crate::f::*",
                "crate::i::J"
            ]
        );
    }

    #[test]
    fn comments_strings_and_tests_do_not_count() {
        let code = "
            // use crate::a;
            fn b() { c(\"crate::d\") }
            #[cfg(test)]
            use crate::{e, f};
            #[cfg(all(test, not(loom)))]
            use crate::g;
            #[cfg(test)]
            mod tests { use crate::h; fn i() { crate::j::k() } }
            #[cfg(not(test))]
            use crate::l;
        ";
        assert_eq!(paths(code), ["crate::l"]);
    }

    fn library(files: &[(&str, &str)]) -> Library {
        let files = files.iter();
        Library::new(files.map(|(n, t)| File::new((*n).to_owned(), t)).collect())
    }

    #[test]
    fn a_path_leads_to_the_file_that_defines_what_it_names() {
        let library = library(&[
            ("lib.rs", "pub use high::Thing; mod high; mod low;"),
            ("high/mod.rs", "mod deep; pub use deep::Inner as Thing;"),
            ("high/deep.rs", "use super::super::low; pub struct Inner;"),
            ("low/mod.rs", "use crate::Thing; use std::fmt;"),
        ]);
        let arrows = library.arrows();
        let found: Vec<_> = arrows
            .iter()
            .map(|((a, b), _)| format!("{a} {b}"))
            .collect();
        assert_eq!(found, ["high low", "low high"]);
        let files: Vec<_> = arrows.values().flatten().cloned().collect();
        assert_eq!(
            files,
            [
                "high/deep.rs names low/mod.rs",
                "low/mod.rs names high/deep.rs"
            ]
        );
        assert_eq!(library.largest_circle().len(), 2);
    }

    #[test]
    fn an_arrow_up_is_wrong_unless_it_is_excepted_and_so_is_a_vain_exception() {
        let library = library(&[
            ("high.rs", "use crate::low::Low;"),
            ("low.rs", "fn a() -> crate::high::High {}"),
        ]);
        let order = ["low", "high"];
        let arrows = library.arrows();
        let said = compare(&arrows, &order, &[]);
        assert_eq!(
            said,
            ["an arrow runs up from low to high: low.rs names high.rs"]
        );
        assert_eq!(compare(&arrows, &order, &[("low", "high")]), [""; 0]);
        for vain in [("high", "low"), ("low", "roof")] {
            let said = compare(&arrows, &order, &[("low", "high"), vain]);
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].starts_with("no arrow runs up"), "{said:?}");
        }
    }
}

//! Checks that each path of a source which ARCHITECTURE.md names can be opened.
//!
//! A path stands in backticks and begins in `crates` or in the root; `FILE::NAME` also names a
//! function of the file. One with a `*` stands for several files and is not looked at.

use std::path::Path;

/// The page, below the workspace.
const PAGE: &str = "ARCHITECTURE.md";

/// What ARCHITECTURE names and the workspace below `root` does not have, a line each.
pub(crate) fn dead(root: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    let (mut named, mut found) = (0, Vec::new());
    for (line, name) in quoted(&text).filter(|(_, name)| is_source(name)) {
        named += 1;
        if let Some(wrong) = judge(root, name) {
            found.push(format!("{PAGE}:{line}: {name}: {wrong}"));
        }
    }
    if named == 0 {
        found.push(format!("{PAGE} names no source: see xtask/src/paths.rs"));
    }
    found
}

/// What stands in backticks within a line, outside blocks of code, with the line's number.
fn quoted(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_block = false;
    let lines = (1..).zip(text.lines()).filter(move |(_, line)| {
        is_block ^= line.starts_with("```");
        !is_block
    });
    lines.flat_map(|(number, line)| {
        let names = line.split('`').skip(1).step_by(2);
        names.map(move |name| (number, name))
    })
}

fn is_source(name: &str) -> bool {
    let path = name.split("::").next().unwrap_or(name);
    let is_path = path.ends_with(".rs") || path.contains("/src") || path.contains("/tests");
    is_path && !name.contains(['*', ' '])
}

fn judge(root: &Path, name: &str) -> Option<String> {
    let (path, function) = match name.split_once("::") {
        Some((path, function)) => (path, Some(function)),
        None => (name, None),
    };
    let places = [root.join("crates").join(path), root.join(path)];
    let Some(place) = places.iter().find(|place| place.exists()) else {
        return Some("there is no such file: say it from crates/, or from the root".to_owned());
    };
    let function = function?;
    let text = std::fs::read_to_string(place).unwrap_or_default();
    let is_there = ["(", "<"].map(|end| text.contains(&format!("fn {function}{end}")));
    (!is_there.contains(&true)).then(|| format!("the file has no function {function}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    #[test]
    fn each_path_of_the_architecture_can_be_opened() {
        let found = dead(&root());
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn a_path_or_function_that_is_not_there_is_found() {
        let text = "see `abi/region.rs`\n```text\n`none.rs`\n```\nand `shm/src/queue/`, `sys`";
        let named: Vec<_> = quoted(text).filter(|(_, name)| is_source(name)).collect();
        assert_eq!(named, [(1, "abi/region.rs"), (5, "shm/src/queue/")]);
        for (name, is_there) in [
            ("abi/region.rs", false),
            ("abi/src/region.rs", true),
            ("shm/src/queue/", true),
            ("crates/portolan/src/hosting/tests", false),
            ("xtask/src/paths.rs::judge", true),
            ("xtask/src/paths.rs::judges", false),
        ] {
            assert_eq!(judge(&root(), name).is_none(), is_there, "{name}");
        }
    }
}

//! Reads the words of the command line, and asks once for help that is asked for twice.

use std::ffi::OsString;

/// This program's arguments, its own name first. Help that is asked for twice
/// (`portolan help trace --help`) is asked for once.
pub fn arguments() -> Vec<OsString> {
    once(std::env::args_os().collect())
}

fn once(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_some_and(|word| word == "help") {
        words.retain(|word| word != "--help" && word != "-h");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_help_about_help_is_left_out() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(once(words("p help run --help")), words("p help run"));
        assert_eq!(once(words("p help -h")), words("p help"));
        for line in ["p", "p run --help", "p run help --help", "p --help"] {
            assert_eq!(once(words(line)), words(line));
        }
    }
}

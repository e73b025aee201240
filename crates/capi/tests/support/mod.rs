//! Lays the library out as it is installed, and compiles C and C++ against that.

#![allow(dead_code, reason = "each test program uses what it needs")]

#[path = "../../../../xtask/src/capi/layout.rs"]
mod layout;

use layout::Parts;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// This crate's folder.
pub(crate) fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A place for files of this test program.
pub(crate) fn room(name: &str) -> PathBuf {
    let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&room).unwrap();
    room
}

/// A library, which lies beside this test program.
fn built(file: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let built = program.parent().unwrap().join(file);
    assert!(built.exists(), "{} was not built", built.display());
    built
}

/// The prefix below which this test program has installed the library.
pub(crate) fn installed(test: &str) -> PathBuf {
    let prefix = room(test).join("prefix");
    install(&prefix, None);
    prefix
}

/// The same, with the static library, which is large: once for the whole test program.
pub(crate) fn installed_whole() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = room("whole").join("prefix");
        install(&prefix, Some(&built("libportolan_c.a")));
        prefix
    })
}

fn install(prefix: &Path, archive: Option<&Path>) {
    let parts = Parts {
        sources: here(),
        shared: &built("libportolan_c.so"),
        archive,
        version: env!("CARGO_PKG_VERSION"),
    };
    layout::install(&parts, prefix).unwrap();
}

/// Whether the machine's compilers have AddressSanitizer; where not, the tests run without and say
/// so.
pub(crate) fn has_asan() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let source = room("asan").join("probe.c");
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let program = source.with_extension("out");
        let built = Command::new("cc")
            .args(["-fsanitize=address,undefined", "-o"])
            .args([&program, &source])
            .output();
        let runs = || Command::new(&program).status().is_ok_and(|s| s.success());
        let has = built.is_ok_and(|built| built.status.success()) && runs();
        if !has {
            eprintln!("LEFT OUT: AddressSanitizer, which this machine's cc does not have");
        }
        has
    })
}

/// Compiles a program in C or C++ with all warnings, and AddressSanitizer where it is there.
pub(crate) fn compile(source: &Path, prefix: &Path, program: &Path) {
    let is_c = source.extension().is_some_and(|e| e == "c");
    // C++ is compiled unoptimised, which takes half the time.
    let (compiler, options) = match is_c {
        true => ("cc", ["-std=gnu11", "-O1", "-g"]),
        false => ("c++", ["-std=gnu++20", "-O0", "-g0"]),
    };
    let mut command = Command::new(compiler);
    command
        .args(options)
        .args(["-Wall", "-Wextra", "-Werror"])
        .arg(format!("-I{}", prefix.join("include").display()))
        .arg(source)
        .arg("-o")
        .arg(program)
        .arg(format!("-L{}", prefix.join("lib").display()))
        .args(["-lportolan", "-lm", "-pthread"]);
    if has_asan() {
        command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    let compiled = command.output().unwrap();
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{command:?}\n{said}");
}

/// Compiles a program in C as one that is used: optimised, and without AddressSanitizer.
pub(crate) fn compile_optimised(source: &Path, prefix: &Path, program: &Path) {
    let mut command = Command::new("cc");
    command
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-I{}", prefix.join("include").display()))
        .arg(source)
        .arg("-o")
        .arg(program)
        .arg(format!("-L{}", prefix.join("lib").display()))
        .arg("-lportolan");
    let compiled = command.output().unwrap();
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{command:?}\n{said}");
}

/// A command that runs a program with the installed library.
pub(crate) fn run(program: &Path, prefix: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_LIBRARY_PATH", prefix.join("lib"))
        .env("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0")
        .env_remove("PORTOLAN_NODE_SOCKET");
    command
}

/// What a program printed, which must have ended well.
pub(crate) fn printed(output: &Output) -> String {
    let (out, said) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{}\n{out}\n{said}", output.status);
    assert_eq!(said, "", "{out}");
    out.into_owned()
}

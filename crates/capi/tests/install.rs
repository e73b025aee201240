//! What is installed is found: by pkg-config, and by CMake; the shared library and the static one.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::{here, installed, installed_whole, printed, room};

fn is_there(tool: &str) -> bool {
    let there = Command::new(tool).arg("--version").output();
    let there = there.is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("LEFT OUT: {tool}, which this machine does not have");
    }
    there
}

const SAID: &str = "sending: 1048576 bytes";

/// Runs what was built; it must find the library by itself, or by the path.
fn runs(program: &Path, prefix: &Path) {
    let mut command = Command::new(program);
    let output = command.env("LD_LIBRARY_PATH", prefix.join("lib")).output();
    assert!(printed(&output.unwrap()).contains(SAID));
}

/// Runs what was built with the static library, without the shared one; it must have no need of it.
fn runs_alone(program: &Path) {
    let mut command = Command::new(program);
    let output = command.env_remove("LD_LIBRARY_PATH").output();
    assert!(printed(&output.unwrap()).contains(SAID));
    let needed = Command::new("readelf").arg("-d").arg(program).output();
    let needed = String::from_utf8(needed.unwrap().stdout).unwrap();
    assert!(needed.contains("[libc.so"), "{needed}");
    assert!(!needed.contains("[libportolan"), "{needed}");
}

/// What pkg-config says of it.
fn ask_pkg_config(prefix: &Path, what: &[&str]) -> String {
    let output = Command::new("pkg-config")
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .args(what)
        .arg("portolan")
        .output()
        .unwrap();
    printed(&output).trim().to_owned()
}

/// Compiles an example with these words of pkg-config's.
fn compiles(program: &Path, words: &str) {
    let compiled = Command::new("cc")
        .arg("-Wall")
        .arg("-Werror")
        .arg(here().join("examples/hello.c"))
        .arg("-o")
        .arg(program)
        .args(words.split_whitespace())
        .output()
        .unwrap();
    printed(&compiled);
}

/// Builds an example by CMake in `room` with this target of the package's; the program, and the folders
/// of sources and of what was built.
fn builds(room: &Path, prefix: &Path, target: &str) -> (PathBuf, PathBuf, PathBuf) {
    let (source, build) = (room.join("source"), room.join("build"));
    let _ = std::fs::remove_dir_all(&build);
    std::fs::create_dir_all(&source).unwrap();
    let project = format!(
        "cmake_minimum_required(VERSION 3.16)\n\
         project(hello C)\n\
         find_package(Portolan {} REQUIRED)\n\
         add_executable(hello {}/examples/hello.c)\n\
         target_link_libraries(hello PRIVATE {target})\n",
        env!("CARGO_PKG_VERSION"),
        here().display()
    );
    std::fs::write(source.join("CMakeLists.txt"), project).unwrap();
    let cmake = |command: &mut Command| {
        let output = command.output().unwrap();
        let (said, wrong) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "{said}\n{wrong}");
    };
    cmake(
        Command::new("cmake")
            .arg("-S")
            .arg(&source)
            .arg("-B")
            .arg(&build)
            .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())),
    );
    cmake(Command::new("cmake").arg("--build").arg(&build));
    (build.join("hello"), source, build)
}

#[test]
fn the_library_is_found_under_its_name_and_no_other() {
    let prefix = installed("install-names");
    let lib = prefix.join("lib");
    let version = env!("CARGO_PKG_VERSION");
    let minor = version.rsplit_once('.').unwrap().0;
    for link in [
        "libportolan.so".to_owned(),
        format!("libportolan.so.{minor}"),
    ] {
        let to = std::fs::read_link(lib.join(link)).unwrap();
        assert_eq!(to, Path::new(&format!("libportolan.so.{version}")));
    }
    // Installed again over itself, as by an update.
    assert_eq!(installed("install-names"), prefix);
    let files = std::fs::read_dir(&lib).unwrap();
    let new = files.filter(|file| {
        let name = file.as_ref().unwrap().file_name();
        name.to_string_lossy().contains(".new-")
    });
    assert_eq!(new.count(), 0);
}

#[test]
fn pkg_config_finds_it() {
    if !is_there("pkg-config") {
        return;
    }
    let prefix = installed("install-pkg-config");
    let version = ask_pkg_config(&prefix, &["--modversion"]);
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    let program = room("install-pkg-config").join("program");
    compiles(&program, &ask_pkg_config(&prefix, &["--cflags", "--libs"]));
    runs(&program, &prefix);
}

/// The static library needs the libraries that the pkg-config file names, and no others: the compiler is
/// told to add none.
#[test]
fn the_static_library_needs_the_libraries_that_are_named_and_no_others() {
    if !is_there("pkg-config") {
        return;
    }
    let prefix = installed_whole();
    let words = ask_pkg_config(prefix, &["--cflags", "--libs", "--static"]);
    // Both lie in one folder: the linker takes the shared one unless told otherwise, as in README.md.
    let words = words.replace("-lportolan", "-l:libportolan.a");
    let program = room("install-static").join("program");
    compiles(&program, &format!("-nodefaultlibs {words}"));
    runs_alone(&program);
}

#[test]
fn cmake_finds_the_static_library() {
    if !is_there("cmake") {
        return;
    }
    let prefix = installed_whole();
    let room = room("install-cmake-static");
    let (program, ..) = builds(&room, prefix, "Portolan::static");
    runs_alone(&program);
}

#[test]
fn cmake_finds_it() {
    if !is_there("cmake") {
        return;
    }
    let prefix = installed("install-cmake");
    let room = room("install-cmake");
    let (program, source, build) = builds(&room, &prefix, "Portolan::portolan");
    runs(&program, &prefix);
    // Another version is refused.
    let other = std::fs::read_to_string(source.join("CMakeLists.txt")).unwrap();
    let other = other.replace(
        &format!("Portolan {}", env!("CARGO_PKG_VERSION")),
        "Portolan 0.9",
    );
    std::fs::write(source.join("CMakeLists.txt"), other).unwrap();
    let output = Command::new("cmake")
        .arg("-S")
        .arg(&source)
        .arg("-B")
        .arg(&build)
        .output()
        .unwrap();
    assert!(!output.status.success());
}

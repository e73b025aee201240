//! What is installed is found: by pkg-config, and by CMake.

mod support;

use std::path::Path;
use std::process::Command;
use support::{here, installed, printed, room};

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
    let ask = |what: &[&str]| {
        let output = Command::new("pkg-config")
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
            .args(what)
            .arg("portolan")
            .output()
            .unwrap();
        printed(&output).trim().to_owned()
    };
    assert_eq!(ask(&["--modversion"]), env!("CARGO_PKG_VERSION"));
    let program = room("install-pkg-config").join("program");
    let compiled = Command::new("cc")
        .arg("-Wall")
        .arg("-Werror")
        .arg(here().join("examples/hello.c"))
        .arg("-o")
        .arg(&program)
        .args(ask(&["--cflags", "--libs"]).split_whitespace())
        .output()
        .unwrap();
    printed(&compiled);
    runs(&program, &prefix);
}

#[test]
fn cmake_finds_it() {
    if !is_there("cmake") {
        return;
    }
    let prefix = installed("install-cmake");
    let room = room("install-cmake");
    let (source, build) = (room.join("source"), room.join("build"));
    let _ = std::fs::remove_dir_all(&build);
    std::fs::create_dir_all(&source).unwrap();
    let project = format!(
        "cmake_minimum_required(VERSION 3.16)\n\
         project(hello C)\n\
         find_package(Portolan {} REQUIRED)\n\
         add_executable(hello {}/examples/hello.c)\n\
         target_link_libraries(hello PRIVATE Portolan::portolan)\n",
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
    runs(&build.join("hello"), &prefix);
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

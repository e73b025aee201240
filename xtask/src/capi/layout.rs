//! Lays the C ABI out below a prefix, as it is installed: library, headers, pkg-config file and
//! CMake package. The tests of `portolan-capi` use it too, by its path.

use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// What libraries a program needs beside the static one.
const STATIC_NEEDS: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// What is installed.
pub(crate) struct Parts<'a> {
    /// `crates/capi`.
    pub(crate) sources: &'a Path,
    /// The shared library, as it was built.
    pub(crate) shared: &'a Path,
    /// The static one, if it was built.
    pub(crate) archive: Option<&'a Path>,
    /// As in `0.1.0`.
    pub(crate) version: &'a str,
}

/// Installs it below `prefix`, over what was there.
pub(crate) fn install(parts: &Parts<'_>, prefix: &Path) -> io::Result<()> {
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    let (pkgconfig, cmake) = (lib.join("pkgconfig"), lib.join("cmake/Portolan"));
    for folder in [&include, &lib, &pkgconfig, &cmake] {
        std::fs::create_dir_all(folder)?;
    }
    for header in ["portolan.h", "portolan.hpp"] {
        std::fs::copy(
            parts.sources.join("include").join(header),
            include.join(header),
        )?;
    }
    let whole = format!("libportolan.so.{}", parts.version);
    let minor: Vec<&str> = parts.version.split('.').take(2).collect();
    // A program that runs keeps the file that it has, so that is not written over.
    replace(&lib.join(&whole), |to| {
        std::fs::copy(parts.shared, to).map(drop)
    })?;
    for link in [
        format!("libportolan.so.{}", minor.join(".")),
        "libportolan.so".to_owned(),
    ] {
        replace(&lib.join(link), |to| symlink(&whole, to))?;
    }
    if let Some(archive) = parts.archive {
        replace(&lib.join("libportolan.a"), |to| {
            std::fs::copy(archive, to).map(drop)
        })?;
    }
    for (template, to) in [
        ("portolan.pc.in", pkgconfig.join("portolan.pc")),
        (
            "PortolanConfig.cmake.in",
            cmake.join("PortolanConfig.cmake"),
        ),
        (
            "PortolanConfigVersion.cmake.in",
            cmake.join("PortolanConfigVersion.cmake"),
        ),
    ] {
        let text = std::fs::read_to_string(parts.sources.join("pkg").join(template))?
            .replace("@VERSION@", parts.version)
            .replace("@MINOR@", &minor.join("."))
            .replace("@STATIC_NEEDS@", STATIC_NEEDS);
        std::fs::write(to, text)?;
    }
    Ok(())
}

/// Makes a file anew, in one step for those who open it.
fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let new = Path::new(&name);
    make(new)?;
    std::fs::rename(new, path)
}

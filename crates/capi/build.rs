//! Gives the shared library the name under which programs look for it once it is installed.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Before 1.0 each minor version may change the ABI, so it is part of the name.
    let version = env!("CARGO_PKG_VERSION");
    let minor: Vec<&str> = version.split('.').take(2).collect();
    println!(
        "cargo::rustc-cdylib-link-arg=-Wl,-soname,libportolan.so.{}",
        minor.join(".")
    );
}

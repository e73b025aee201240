//! What a program says that forgot a derive: few errors, each of which says what to write. And
//! that a program with all of them needs no crate but this one.
//!
//! Programs are checked by the compiler that built this test, against the library that it was
//! built with, and nothing is made of them. Only our own words are compared.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where cargo puts this test, and the libraries beside it.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// The library, as it was built last.
fn library(among: &Path) -> PathBuf {
    let files = std::fs::read_dir(among).unwrap();
    let built = files.map(|file| file.unwrap().path()).filter(|path| {
        let name = path.file_name().unwrap().to_str().unwrap_or_default();
        name.starts_with("libportolan-") && name.ends_with(".rlib")
    });
    let changed = |path: &PathBuf| path.metadata().unwrap().modified().unwrap();
    built.max_by_key(changed).expect("the library")
}

/// What the compiler says of a program: each error, whole.
fn errors(name: &str, program: &str) -> Vec<String> {
    use std::io::Write;
    let libraries = libraries();
    let out = std::env::temp_dir().join(format!("portolan-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&out).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut compiler = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=bin", "--emit=metadata", "-"])
        .args(["--crate-name", name, "--out-dir"])
        .arg(&out)
        .arg("-L")
        .arg(format!("dependency={}", libraries.display()))
        .arg("--extern")
        .arg(format!("portolan={}", library(&libraries).display()))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = compiler.stdin.take().unwrap();
    stdin.write_all(program.as_bytes()).unwrap();
    drop(stdin);
    let said = compiler.wait_with_output().unwrap();
    let _ = std::fs::remove_dir_all(&out);
    let text = String::from_utf8(said.stderr).unwrap();
    let mut errors: Vec<String> = text
        .split("\n\n")
        .filter(|part| part.starts_with("error[") || part.starts_with("error: "))
        .filter(|part| !part.contains("aborting due to"))
        .map(str::to_owned)
        .collect();
    assert_eq!(said.status.success(), errors.is_empty(), "{text}");
    errors.sort();
    errors
}

#[track_caller]
fn says(errors: &[String], each: &[&[&str]]) {
    assert_eq!(errors.len(), each.len(), "{}", errors.join("\n\n"));
    for (error, parts) in errors.iter().zip(each) {
        for part in *parts {
            assert!(error.contains(part), "{part:?} is not in\n{error}");
        }
    }
}

#[test]
fn types_of_a_service_without_derives_are_one_error_each() {
    let found = errors(
        "service",
        r#"
            struct Order { number: u32 }
            struct Receipt { number: u32 }
            #[portolan::service]
            trait Shop {
                fn buy(&self, order: Order, name: &str) -> Receipt;
                async fn again(&self, order: Order) -> Result<Receipt, String>;
                #[rpc(one_way)]
                fn forget(&self, order: Order);
            }
            fn main() {
                let domain = portolan::Domain::private().unwrap();
                let shop = ShopClient::connect(&domain, "shop", portolan::Deadline::NOW).unwrap();
                let _ = shop.buy(Order { number: 1 }, "mine");
            }
        "#,
    );
    let what = "#[derive(portolan::rpc::Schema, portolan::serde::Serialize, \
                portolan::serde::Deserialize)]";
    says(
        &found,
        &[
            &["`Order` cannot travel in a call", what],
            &["`Receipt` cannot travel in a call", what],
            // As it is another type: one that holds it.
            &["cannot travel in a call", "Receipt", what],
        ],
    );
}

#[test]
fn a_field_without_a_schema_is_one_error() {
    let found = errors(
        "schema",
        r"
            struct Point { x: f32 }
            #[derive(portolan::rpc::Schema)]
            struct Line { from: Point }
            fn main() {}
        ",
    );
    let what = "write `#[derive(portolan::rpc::Schema)]` above `Point`";
    says(&found, &[&["`Point` has no `Schema`", what]]);
}

#[test]
fn a_sample_without_the_derive_is_one_error() {
    let program = |ty: &str| {
        format!(
            r#"
                #[derive(Clone, Copy)]
                struct Point {{ x: f32, seen: bool }}
                fn main() {{
                    let domain = portolan::Domain::private().unwrap();
                    let _ = domain.publisher::<{ty}>("points", Default::default());
                }}
            "#
        )
    };
    let what = "write `#[derive(Clone, Copy, portolan::channel::Payload)]` and `#[repr(C)]`";
    for (name, ty) in [
        ("one", "Point"),
        ("many", "[Point]"),
        ("array", "[Point; 3]"),
    ] {
        says(
            &errors(name, &program(ty)),
            &[&["Point", "cannot be published as a sample", what]],
        );
    }
    says(
        &errors("text", &program("String")),
        &[&[
            "`String` cannot be published",
            "portolan::structure::Structure<T>",
        ]],
    );
}

#[test]
fn a_part_of_a_structure_without_the_derive_is_one_error() {
    let what = "write `#[derive(portolan::Handover)]`";
    let found = errors(
        "field",
        r"
            struct Point { x: f32 }
            #[derive(portolan::Handover)]
            struct Line { from: Point }
            fn main() {}
        ",
    );
    says(&found, &[&["`Point` may not lie in an arena", what]]);
    let found = errors(
        "root",
        r"
            use portolan::structure::{List, Structure};
            struct Point { x: f32 }
            fn main() {
                let domain = portolan::Domain::private().unwrap();
                let _ = Structure::<List<Point>>::build(&domain, |arena| Ok(arena.list()));
            }
        ",
    );
    says(&found, &[&["`Point` may not lie in an arena", what]]);
}

#[test]
fn a_program_with_all_derives_needs_no_other_crate() {
    let found = errors(
        "all",
        r#"
            #![forbid(unsafe_code)]
            #![deny(warnings)]
            use portolan::bytemuck::Zeroable;
            use portolan::channel::{Payload, TopicOptions};
            use portolan::rpc::{CallError, Schema};
            use portolan::serde::{Deserialize, Serialize};
            use portolan::structure::{List, Structure, Text};
            use portolan::{Deadline, Domain, Handover};

            #[derive(Clone, Debug, Schema, Serialize, Deserialize)]
            #[serde(crate = "portolan::serde")]
            pub struct Order { pub number: u32, pub names: Vec<String> }

            /// Not an error itself.
            #[derive(Clone, Debug, Schema, Serialize, Deserialize)]
            #[serde(crate = "portolan::serde")]
            pub enum Refused { TooMany { most: u32 } }

            #[portolan::service]
            pub trait Shop {
                fn buy(&self, order: Order, name: &str) -> Result<Order, Refused>;
            }

            #[derive(Clone, Copy, Payload)]
            #[repr(C)]
            pub struct Track { pub seen: bool, pub at: [f64; 2], pub kind: Kind }

            #[derive(Clone, Copy, Payload)]
            #[repr(u8)]
            pub enum Kind { Ship, Buoy { lit: bool } }

            #[derive(Handover)]
            pub struct Names<'a> { pub all: List<'a, Text<'a>> }

            fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
                let domain = Domain::private()?;
                let shop = ShopClient::connect(&domain, "shop", Deadline::NOW)?;
                let order = shop.buy(Order { number: u32::zeroed(), names: vec![] }, "mine")?;
                match shop.buy(order, "mine") {
                    Err(CallError::Method(Refused::TooMany { most })) => println!("{most}"),
                    other => drop(other?),
                }
                let options = TopicOptions::default();
                let mut tracks = domain.publisher::<[Track]>("tracks", options)?;
                tracks.publish(&[])?;
                let mut names = domain.publisher::<Structure<Names>>("names", options)?;
                names.loan(|arena| Ok(Names { all: arena.list() }))?.publish()?;
                Ok(())
            }
        "#,
    );
    says(&found, &[]);
}

//! A service: a trait, its implementation in a process of its own, and what a client sees.
//!
//! Run it with `cargo run --example rpc_service`.

use portolan::rpc::{self, CallError, Large, RpcError, Schema};
use portolan::{Deadline, Domain};
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Pictures by name.
#[portolan::service]
trait Gallery {
    /// A picture; its pixels move, whatever their size.
    fn picture(&self, name: &str, width: usize, height: usize) -> Result<Picture, NoPicture>;
    /// Said, and not answered.
    #[rpc(one_way)]
    fn praise(&self, words: String);
    /// Everything that was said.
    fn praises(&self) -> Vec<String>;
}

#[derive(Debug, Schema, Serialize, Deserialize)]
struct Picture {
    width: usize,
    height: usize,
    pixels: Large,
}

#[derive(Debug, Schema, Serialize, Deserialize, thiserror::Error)]
enum NoPicture {
    #[error("there is no {name:?}, but {}", there.join(" and "))]
    Unknown { name: String, there: Vec<String> },
    #[error("a picture has {most} pixels at most")]
    TooLarge { most: usize },
}

fn main() -> Outcome {
    match std::env::args().nth(1) {
        Some(domain) => serve(&domain),
        None => look(),
    }
}

struct Room {
    domain: Domain,
    praises: std::sync::Mutex<Vec<String>>,
}

impl Gallery for Room {
    fn picture(&self, name: &str, width: usize, height: usize) -> Result<Picture, NoPicture> {
        let pixel = match name {
            "sea" => 0x1f,
            "dusk" => 0xc4,
            _ => {
                return Err(NoPicture::Unknown {
                    name: name.to_owned(),
                    there: vec!["dusk".to_owned(), "sea".to_owned()],
                });
            }
        };
        let most = 64 << 20;
        let mut pixels = match self.domain.allocate(width * height) {
            Ok(pixels) if width * height <= most => pixels,
            _ => return Err(NoPicture::TooLarge { most }),
        };
        pixels.fill(pixel);
        Ok(Picture {
            width,
            height,
            pixels: pixels.into(),
        })
    }

    fn praise(&self, words: String) {
        assert!(!words.is_empty(), "praise without words");
        self.lock().push(words);
    }

    fn praises(&self) -> Vec<String> {
        self.lock().clone()
    }
}

impl Room {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.praises.lock().unwrap_or_else(|e| e.into_inner())
    }
}

fn serve(domain: &str) -> Outcome {
    let domain = Domain::join(domain)?;
    let room = GalleryService(Room {
        domain: domain.clone(),
        praises: Default::default(),
    });
    let _server = rpc::serve(&domain, "gallery", room, &Default::default())?;
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

fn look() -> Outcome {
    let name = format!("rpc-service-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let mut server = Command::new(std::env::current_exe()?).arg(&name).spawn()?;
    let gallery = GalleryClient::connect(&domain, "gallery", soon())?;

    // A result of 12 MiB: none of it is copied.
    let picture = gallery.picture("sea", 4096, 3072)?;
    let pixels = picture.pixels.into_extent().ok_or("no pixels")?;
    let (first, size) = (pixels[0], pixels.len());
    println!(
        "sea: {} x {}, {size} bytes of {first:#x}",
        picture.width, picture.height
    );

    // The method's own errors, and those of the way.
    match gallery.picture("night", 10, 10) {
        Err(CallError::Method(error @ NoPicture::Unknown { .. })) => println!("{error}"),
        other => println!("unexpected: {other:?}"),
    }
    gallery.praise("very blue".to_owned())?;
    println!("said: {:?}", gallery.praises()?);

    server.kill()?;
    server.wait()?;
    match gallery.praises() {
        Err(RpcError::ServerDied) => println!("the gallery has closed"),
        other => println!("unexpected: {other:?}"),
    }
    Ok(())
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

//! Joins two programs that do not share a domain: a camera offers a port to processes that know a
//! token, and a guest, which could be another user's program, sends to it and asks it things.
//!
//! Run it without arguments; it starts the guest itself.

use portolan::{
    Access, AccessToken, ConnectOptions, Deadline, Domain, Message, OfferOptions, Permissions,
    PortOptions,
};
use std::error::Error;
use std::process::Command;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        None => camera(),
        Some(domain) => guest(&domain),
    }
}

/// Long enough for anything, so that nothing hangs.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

fn camera() -> Result<(), Box<dyn Error>> {
    let name = format!("camera-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let mut masks = domain.bind(PortOptions::unnamed())?;
    let mut settings = domain.bind(PortOptions::unnamed().synchronous())?;

    // A client does not join our domain: it sees none of our memory, and its messages are copied.
    let token = AccessToken::random()?;
    let permissions = Permissions::own_user().token(token);
    let options = OfferOptions::default().most_bytes(8 << 20);
    let masks_offered = masks.offer("masks", &permissions, options.clone())?;
    let settings_offered = settings.offer("settings", &permissions, options)?;

    let secret: String = token.to_bytes().map(|b| format!("{b:02x}")).concat();
    let mut guest = Command::new(std::env::current_exe()?)
        .arg(&name)
        .env("CAMERA_TOKEN", secret)
        .spawn()?;

    let request = settings.get_request(Access::Later, soon())?;
    println!(
        "camera: asked for {:?}",
        String::from_utf8_lossy(request.message.header())
    );
    request.reply(Message::new(b"1920 x 1080")?)?;

    let mask = masks.receive(Access::Now, soon())?;
    let covered = mask.slices().flatten().filter(|byte| **byte != 0).count();
    println!("camera: a mask of {} bytes covers {covered}", mask.len());
    // Withdrawn, its right is a dead name: the guest may go.
    drop(settings_offered);
    guest.wait()?;
    println!(
        "camera: {} clients broke the rules",
        masks_offered.take_violations().len()
    );
    Ok(())
}

fn guest(camera: &str) -> Result<(), Box<dyn Error>> {
    let domain = Domain::join(&format!("guest-of-{camera}"))?;
    let secret = std::env::var("CAMERA_TOKEN")?;
    let mut token = [0; 16];
    for (at, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&secret[2 * at..2 * at + 2], 16)?;
    }
    // Of another user's camera: `Domain::builder(camera).of_user(uid)`.
    let camera = Domain::builder(camera);
    let options = ConnectOptions::default().token(AccessToken::from_bytes(token));

    let settings = domain.connect_to(&camera, "settings", options.clone())?;
    let answer = settings.request_reply(Message::new(b"the resolution")?, Access::Later, soon())?;
    println!("guest: {}", String::from_utf8_lossy(answer.header()));

    let masks = domain.connect_to(&camera, "masks", options)?;
    let mut mask = domain.allocate(1920 * 1080)?;
    mask.fill(0);
    mask[..1920 * 100].fill(1);
    let mut message = Message::new(b"above the horizon")?;
    message.push(mask)?;
    masks.send(message, soon())?;

    // More than the camera takes is refused here, and comes back.
    let mut message = Message::new(b"too much")?;
    message.push(domain.allocate(9 << 20)?)?;
    if let Err(error) = masks.send(message, soon()) {
        println!("guest: {} bytes came back", error.item.len());
    }
    // What was sent goes over while this process lives; the camera says when it may end.
    while settings.is_live() {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

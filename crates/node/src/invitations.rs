//! Tokens that were given out. Each lies in a file, and is good once.
//!
//! # Invariants
//!
//! - **I1** An invitation that was used is not used again, whatever dies and whenever: it is taken
//!   away, and that lasts, before anything is signed.
//! - **I2** A wrong proof takes nothing away, so a stranger that knows the number of an invitation
//!   cannot spoil it.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;

use aws_lc_rs::{digest, hmac};
use portolan_transport::Moment;

use crate::state::{State, sync_folder};
use crate::token::{GOOD_FOR, Token};
use crate::{NodeError, Result};

/// Where they lie.
const FOLDER: &str = "invitations";

/// The number of an invitation, which tells nothing of its secret.
pub type Number = [u8; 8];

/// The number of a secret.
pub fn number(secret: &[u8; 16]) -> Number {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(b"portolan invitation 1");
    context.update(secret);
    let mut number = [0; 8];
    number.copy_from_slice(&context.finish().as_ref()[..8]);
    number
}

fn text(number: Number) -> String {
    number.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An invitation's number as people see it.
pub fn in_words(number: Number) -> String {
    text(number)
}

/// What a newcomer proves with: that it knows the secret, on this connection, for this request.
pub fn proof(secret: &[u8; 16], binding: &[u8; 32], name: &str, request: &[u8]) -> [u8; 32] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let mut proof = [0; 32];
    proof.copy_from_slice(hmac::sign(&key, &proven(binding, name, request)).as_ref());
    proof
}

fn proven(binding: &[u8; 32], name: &str, request: &[u8]) -> Vec<u8> {
    let request = digest::digest(&digest::SHA256, request);
    let name = digest::digest(&digest::SHA256, name.as_bytes());
    let parts = [
        &b"portolan join 1"[..],
        binding,
        name.as_ref(),
        request.as_ref(),
    ];
    parts.concat()
}

/// Makes a token and keeps what is needed to know it again.
///
/// # Errors
///
/// What writing can say.
pub fn invite(state: &State, address: &str, authority: [u8; 16], now: Moment) -> Result<Token> {
    let secret =
        portolan_sys::process::random().map_err(NodeError::system("cannot draw a number"))?;
    let token = Token {
        address: address.to_owned(),
        expires: Moment {
            seconds: now.seconds + GOOD_FOR.as_secs(),
        },
        secret,
        authority,
    };
    let folder = state.file(FOLDER);
    let mut builder = DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(NodeError::file("cannot make the directory", &folder))?;
    sync_folder(state.path())?;
    let secret: String = token.secret.iter().map(|b| format!("{b:02x}")).collect();
    let contents = format!("{} {secret}\n", token.expires.seconds);
    state.write(
        &format!("{FOLDER}/{}", text(number(&token.secret))),
        &contents,
    )?;
    Ok(token)
}

/// Why an invitation is not good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotGood {
    /// There is none with this number: it was used, or never given out here.
    #[error("the token is not known here: it was used already, or comes from another node")]
    Unknown,
    /// Its time is over.
    #[error("the token expired at {expired} and it is {now}")]
    Expired {
        /// Until when it was good.
        expired: Moment,
        /// What our clock says.
        now: Moment,
    },
    /// The proof is not of its secret, or of another connection.
    #[error("the proof of the token is wrong")]
    WrongProof,
}

/// Uses an invitation up (I1), if the proof is right.
///
/// # Errors
///
/// `Ok(Err(..))`: why it is not good. `Err`: what reading and writing can say; it is used up then
/// if it cannot be told.
pub fn redeem(
    state: &State,
    wanted: Number,
    shown: &[u8; 32],
    binding: &[u8; 32],
    name: &str,
    request: &[u8],
    now: Moment,
) -> Result<std::result::Result<(), NotGood>> {
    let file = format!("{FOLDER}/{}", text(wanted));
    let Some(contents) = state.read_key(&file)? else {
        return Ok(Err(NotGood::Unknown));
    };
    let Some((expired, secret)) = parse(&contents) else {
        return Err(NodeError::Damaged {
            path: state.file(&file),
            what: "it should hold a time and a secret".to_owned(),
        });
    };
    let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
    if hmac::verify(&key, &proven(binding, name, request), shown).is_err() {
        return Ok(Err(NotGood::WrongProof));
    }
    // Whom it is taken from has not used it.
    let path = state.file(&file);
    match std::fs::remove_file(&path) {
        Ok(()) => sync_folder(&state.file(FOLDER))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Err(NotGood::Unknown));
        }
        Err(error) => return Err(NodeError::file("cannot remove", &path)(error)),
    }
    if now > expired {
        return Ok(Err(NotGood::Expired { expired, now }));
    }
    Ok(Ok(()))
}

fn parse(contents: &str) -> Option<(Moment, [u8; 16])> {
    let (seconds, secret) = contents.trim().split_once(' ')?;
    let seconds = seconds.parse().ok()?;
    // An id has as many bytes and the same form.
    let secret: portolan_transport::NodeId = secret.parse().ok()?;
    Some((Moment { seconds }, secret.0))
}

/// Removes those whose time is over.
///
/// # Errors
///
/// What reading can say.
pub fn sweep(state: &State, now: Moment) -> Result<()> {
    let folder = state.file(FOLDER);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(NodeError::file("cannot read", &folder)(error)),
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let contents = state.read(&format!("{FOLDER}/{}", name.to_string_lossy()))?;
        if contents
            .and_then(|c| parse(&c))
            .is_some_and(|(expired, _)| now > expired)
        {
            // One that was used meanwhile is gone already.
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}

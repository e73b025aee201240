//! A newcomer's request, damaged: nothing but the whole, true one is let in.

use arbitrary::{Result, Unstructured};
use portolan_abi::join::{JOIN_MAGIC, JOIN_VERSION, JoinAnswer, JoinOutcome, JoinRequest};
use portolan_node::authority::{self, Authority};
use portolan_node::invitations;
use portolan_node::join::answer;
use portolan_node::state::State;
use portolan_transport::Moment;
use std::sync::OnceLock;

/// The TLS session that all requests come by.
const BINDING: [u8; 32] = [7; 32];
const NOW: Moment = Moment {
    seconds: 1_800_000_000,
};

/// A node, and a request that it would let in.
struct Hall {
    state: State,
    request: Vec<u8>,
}

static HALL: OnceLock<Option<Hall>> = OnceLock::new();

/// Removes what processes have left here that are dead.
fn sweep(folder: &std::path::Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name
            .to_str()
            .and_then(|name| name.strip_prefix("portolan-fuzz-"));
        let process = process.and_then(|number| number.parse::<u32>().ok());
        if process.is_some_and(|it| !std::path::Path::new(&format!("/proc/{it}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn hall() -> Option<Hall> {
    let folder = std::env::temp_dir();
    sweep(&folder);
    let path = folder.join(format!("portolan-fuzz-{}", std::process::id()));
    let state = State::at(&path).ok()?;
    authority::make_first(&state, "hall", NOW).ok()?;
    let key = Authority::load(&state).ok()?.key().ok()?;
    let token = invitations::invite(&state, "hall:7411", key, NOW).ok()?;
    let (_, signing) = authority::request("roof").ok()?;
    let head = JoinRequest {
        magic: JOIN_MAGIC,
        version: JOIN_VERSION,
        invitation: invitations::number(&token.secret),
        proof: invitations::proof(&token.secret, &BINDING, "roof", &signing),
        name: 4,
        request: u16::try_from(signing.len()).ok()?,
    };
    let request = [&head.encode()[..], b"roof", &signing].concat();
    Some(Hall { state, request })
}

pub(super) fn run(data: &[u8]) {
    // Whatever is left undone when the bytes end is of no interest.
    let _ = play(&mut Unstructured::new(data));
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    // A machine without room for a directory has nothing to look at.
    let Some(hall) = HALL.get_or_init(hall) else {
        return Ok(());
    };
    let mut bytes = if u.arbitrary()? {
        hall.request.clone()
    } else {
        u.bytes(u.len() / 2)?.to_vec()
    };
    while !u.is_empty() && !bytes.is_empty() {
        let at = u.int_in_range(0..=bytes.len() - 1)?;
        match u.int_in_range(0..=2)? {
            0 => bytes[at] = u.arbitrary()?,
            1 => bytes.truncate(at),
            _ => bytes.insert(at, u.arbitrary()?),
        }
    }
    if bytes == hall.request {
        return Ok(());
    }
    if let Some(answer) = answer(&hall.state, &bytes, &BINDING, "the fuzzer", NOW) {
        let said = JoinAnswer::decode(&answer).expect("a refusal is whole");
        assert_ne!(said.outcome, JoinOutcome::Welcome, "let in by {bytes:x?}");
        assert_ne!(
            said.outcome,
            JoinOutcome::Failed,
            "the node failed by {bytes:x?}"
        );
    }
    Ok(())
}

//! The state of a server that moved, tampered with: refused, or it works.

use arbitrary::{Result, Unstructured};
use portolan_proto::{
    Flags, Header, Kind, PacketPath, Pipe, Seal, Server, Settings, Status, Time, seal,
};

const SESSION: u64 = 9;
const INCARNATION: u64 = 2;
const NOW: Time = Time(1 << 40);

pub(super) fn run(data: &[u8]) {
    // As it came, and as a state that was right once.
    if let Ok(server) = Server::thaw(Settings::default(), data) {
        work(server, SESSION);
    }
    let _ = tampered(&mut Unstructured::new(data));
}

fn tampered(u: &mut Unstructured<'_>) -> Result<()> {
    let mut state = honest();
    for _ in 0..u.int_in_range(1..=8)? {
        let at = u.choose_index(state.len() / 8)? * 8;
        let word = if u.arbitrary()? {
            u.int_in_range(0..=300_u64)?
        } else {
            u.arbitrary()?
        };
        if let Some(place) = state.get_mut(at..at + 8) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }
    if u.ratio(1, 8)? {
        state.truncate(u.choose_index(state.len())?);
    }
    if let Ok(server) = Server::thaw(Settings::default(), &state) {
        let session = server.session();
        work(server, session);
    }
    Ok(())
}

/// A server with calls that wait, and one that was answered.
fn honest() -> Vec<u8> {
    let (mut client, mut link) = Pipe::pair();
    let mut server = Server::new(Settings::default(), SESSION, INCARNATION);
    for number in 1..5 {
        say(&mut client, SESSION, Kind::Call, number, &[1; 20]);
        let _ = server.poll(NOW, &mut link);
    }
    let mut body = Vec::new();
    if let Some(incoming) = server.take(NOW, &mut body) {
        let _ = server.answer(&mut link, incoming.number, Status::Returned, &mut body);
    }
    server.freeze().unwrap_or_default()
}

fn say(link: &mut Pipe, session: u64, kind: Kind, number: u64, body: &[u8]) {
    let header = Header {
        kind,
        flags: Flags(0),
        what: 1,
        number: 0,
        behind: 0,
        when: portolan_abi::rpc::NO_DEADLINE,
    };
    let key = Seal::new(session, INCARNATION);
    let mut packet = Vec::new();
    seal(&key, link.position(), header, number, body, &mut packet);
    link.send(&packet);
}

/// What a server does, with a client that goes on.
fn work(mut server: Server, session: u64) {
    let (mut client, mut link) = Pipe::pair();
    let mut body = Vec::new();
    let mut last = 0;
    for number in 1..70 {
        say(&mut client, session, Kind::Call, number, &[2; 8]);
        say(&mut client, session, Kind::Cancel, number + 3, &[]);
        say(&mut client, session, Kind::Missing, number, &[0xff; 16]);
        let ask: Vec<u8> = [INCARNATION, number, u64::MAX, u64::MAX]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        say(&mut client, session, Kind::Ask, 0, &ask);
        while server.poll(NOW, &mut link) == Ok(true) {}
        while let Some(incoming) = server.take(NOW, &mut body) {
            assert!(incoming.number > last, "{} after {last}", incoming.number);
            last = incoming.number;
            let _ = server.answer(&mut link, incoming.number, Status::Returned, &mut body);
        }
    }
    if let Ok(state) = server.freeze() {
        let again = Server::thaw(Settings::default(), &state);
        assert!(again.is_ok(), "its own state is refused: {:?}", again.err());
    }
}

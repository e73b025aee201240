//! Counts messages, with and without extents, and requests, at a port whose sender receives there.

use std::hint::black_box;

use portolan::{
    Access, Deadline, Domain, Message, PortOptions, Protection, ReceiveError, ReceiveRight,
    SendRight, Waiting, WhenFull,
};
use portolan_sys::memory::PAGE;

use super::Scene;
use super::rounds::{Rounds, domain, must, refused};
use crate::error::Result;
use crate::stepped::part;

/// Bytes of a slot beside its state: with them a slot is one cache line.
const INLINE: usize = 48;

pub(super) fn scenes() -> Vec<Scene> {
    vec![
        Scene::ours(
            &[
                "send, null",
                "receive, null, found at once",
                "receive, one look in vain",
            ],
            0,
            headers,
        ),
        Scene::ours(
            &["send in place, null", "receive in place, null"],
            0,
            in_place,
        ),
        Scene::ours(
            &[
                "send, 48 B header",
                "receive, 48 B header",
                "receive, one look in vain, after 48 B",
            ],
            48,
            headers,
        ),
        Scene::ours(
            &[
                "send, 4 KiB header",
                "receive, 4 KiB header",
                "receive, one look in vain, after 4 KiB",
            ],
            4096,
            headers,
        ),
        Scene::ours(&["send, 1 extent", "receive, 1 extent"], 0, one_extent),
        Scene::ours(&["send, 8 extents", "receive, 8 extents"], 0, eight_extents),
        Scene::ours(
            &["send, 1 extent, guarded", "receive, 1 extent, guarded"],
            0,
            one_guarded,
        ),
        Scene::ours(
            &["send, 8 extents, guarded", "receive, 8 extents, guarded"],
            0,
            eight_guarded,
        ),
        Scene::ours(
            &["request, null", "get, null", "reply, null", "answer, null"],
            0,
            requests,
        ),
    ]
}

fn port(domain: &Domain) -> Result<(ReceiveRight, SendRight)> {
    let options = PortOptions::named("counted").inline_bytes(INLINE);
    let mut port = domain.bind(options).map_err(refused)?;
    port.set_waiting(Waiting::Poll);
    let right = port.make_send();
    Ok((port, right))
}

fn headers(_: usize, bytes: usize, rounds: &Rounds<'_>) -> Result<()> {
    let domain = rounds.domain(Protection::Trusted)?;
    let (mut port, right) = port(&domain)?;
    let header = vec![7; bytes];
    let mut kept = Some(Message::new(&header).map_err(refused)?);
    rounds.go(|| {
        let message = black_box(kept.take().unwrap_or_default());
        part(|| right.send(message, WhenFull::Fail)).map_err(refused)?;
        let found = part(|| port.receive(Access::Later, Deadline::NEVER));
        let again = part(|| port.receive(Access::Later, Deadline::NOW));
        must(matches!(again, Err(ReceiveError::TimedOut)))?;
        let found = found.map_err(refused)?;
        must(found.header() == header)?;
        kept = Some(found);
        Ok(())
    })
}

fn in_place(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    let domain = domain(Protection::Trusted)?;
    let (mut port, right) = port(&domain)?;
    let mut message = Message::default();
    rounds.go(|| {
        part(|| right.send_from(&mut message, WhenFull::Fail)).map_err(refused)?;
        part(|| port.receive_into(&mut message, Access::Later, Deadline::NEVER)).map_err(refused)
    })
}

fn one_extent(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    extents(1, Protection::Trusted, rounds)
}

fn eight_extents(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    extents(8, Protection::Trusted, rounds)
}

fn one_guarded(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    extents(1, Protection::Guarded, rounds)
}

fn eight_guarded(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    extents(8, Protection::Guarded, rounds)
}

/// Of a page each, which the receiver opens where they are closed to it.
fn extents(number: usize, protection: Protection, rounds: &Rounds<'_>) -> Result<()> {
    let domain = domain(protection)?;
    let (mut port, right) = port(&domain)?;
    let mut message = Message::default();
    for _ in 0..number {
        let extent = domain.allocate(PAGE).map_err(refused)?;
        message
            .push(extent)
            .map_err(|refusal| refused(refusal.why))?;
    }
    let access = match protection {
        Protection::Guarded => Access::Now,
        _ => Access::Later,
    };
    let mut kept = Some(message);
    rounds.go(|| {
        let message = black_box(kept.take().unwrap_or_default());
        part(|| right.send(message, WhenFull::Fail)).map_err(refused)?;
        let found = part(|| port.receive(access, Deadline::NEVER)).map_err(refused)?;
        must(found.extents().len() == number)?;
        kept = Some(found);
        Ok(())
    })
}

fn requests(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    let domain = rounds.domain(Protection::Trusted)?;
    let options = PortOptions::named("counted")
        .synchronous()
        .inline_bytes(INLINE);
    let mut port = domain.bind(options).map_err(refused)?;
    port.set_waiting(Waiting::Poll);
    let right = port.make_send();
    let mut kept = Some(Message::default());
    rounds.go(|| {
        let message = black_box(kept.take().unwrap_or_default());
        let mut pending = part(|| right.begin_request(message, WhenFull::Fail)).map_err(refused)?;
        let request = part(|| port.get_request(Access::Later, Deadline::NEVER));
        let request = request.map_err(refused)?;
        part(|| request.reply_in_place()).map_err(refused)?;
        let answer = part(|| pending.wait(Access::Later, Deadline::NEVER));
        kept = Some(answer.map_err(refused)?);
        Ok(())
    })
}

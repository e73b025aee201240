//! Lists the staged deaths: where the victim dies, what it was doing, and what another process
//! waits for.

use super::actor::{Actor, stay};
use super::{Failure, PATIENCE, Part};
use portolan::channel::{ChannelOptions, ReaderOptions};
use portolan::{
    Access, Deadline, ListenerOptions, Message, PortOptions, SendRight, WaitSet, Waiting, WhenFull,
};
use std::time::{Duration, Instant};

/// A death, and who is there.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    /// The rule of the recovery without which something is lost.
    pub(crate) rule: &'static str,
    /// Where the victim dies.
    pub(crate) mark: &'static str,
    /// Who would keep that rule: the host, or the victim itself.
    pub(crate) keeper: Part,
    /// The victim gets its cue when the survivor sleeps.
    pub(crate) sleeps: bool,
    pub(crate) survivor: fn(&Actor) -> Result<(), Failure>,
    pub(crate) victim: fn(&Actor) -> Result<(), Failure>,
}

/// A scene in which the survivor has a port, and nothing is done with it but by the victim.
const fn scene(
    rule: &'static str,
    mark: &'static str,
    victim: fn(&Actor) -> Result<(), Failure>,
) -> Scene {
    Scene {
        name: rule,
        rule,
        mark,
        keeper: Part::Host,
        sleeps: false,
        survivor: stand_by,
        victim,
    }
}

/// Every scene: one for each rule, and more for the one that wakes in several ways.
pub(crate) static SCENES: [Scene; 16] = [
    scene("extents", "send.before_publish", send_extents),
    scene("moving", "right.receive_leaves", send_port),
    scene("claims", "send.claimed", send),
    scene("ports", "bind.done", bind),
    scene("cycles", "allocate.done", allocate_beside_a_cycle),
    Scene {
        survivor: ask,
        ..scene("rights", "receive.taken", serve)
    },
    scene("chunks", "chunk.claimed", allocate),
    Scene {
        keeper: Part::Victim,
        ..scene("holes", "chunk.punched", give_back)
    },
    scene("waits", "watch.taken", watch),
    Scene {
        survivor: read,
        ..scene("channels", "channel.begun", write)
    },
    Scene {
        name: "channels-reader",
        survivor: read,
        ..scene("channels", "channel.joined", read_too)
    },
    Scene {
        name: "channels-caller",
        survivor: read_calls,
        ..scene("channels", "channel.begun", write)
    },
    scene("signals", "signal.block_added", listen),
    Scene {
        sleeps: true,
        survivor: sleep,
        ..scene("wakes", "send.before_wake", send)
    },
    Scene {
        name: "wakes-set",
        sleeps: true,
        survivor: sleep_in_set,
        ..scene("wakes", "send.before_wake", send)
    },
    Scene {
        name: "wakes-senders",
        survivor: await_no_more_senders,
        ..scene("wakes", "allocate.done", allocate_with_a_right)
    },
];

impl Scene {
    pub(crate) fn of(name: &str) -> Option<&'static Self> {
        SCENES.iter().find(|s| s.name == name)
    }
}

const INBOX: &str = "inbox";
const SERVER: &str = "server";
const CHANNEL: &str = "channel";

// Survivors.

fn stand_by(actor: &Actor) -> Result<(), Failure> {
    let _inbox = actor.domain.bind(PortOptions::named(INBOX))?;
    actor.ready(1, 0)?;
    stay()
}

/// Waits for an answer.
fn ask(actor: &Actor) -> Result<(), Failure> {
    let server = actor.domain.connect(SERVER, PATIENCE)?;
    let _pending = server.begin_request(Message::new(b"?")?, WhenFull::Fail)?;
    // Or the journal would have to say whether it lives.
    drop(server);
    actor.ready(0, 1)?;
    stay()
}

fn sleep(actor: &Actor) -> Result<(), Failure> {
    let mut inbox = actor.domain.bind(PortOptions::named(INBOX))?;
    inbox.set_waiting(Waiting::Sleep);
    actor.ready(1, 0)?;
    drop(inbox.receive(Access::Later, Deadline::NEVER)?);
    stay()
}

fn sleep_in_set(actor: &Actor) -> Result<(), Failure> {
    let mut set = WaitSet::new(&actor.domain)?;
    set.set_waiting(Waiting::Sleep);
    let inbox = actor.domain.bind(PortOptions::named(INBOX))?;
    let token = set.add(inbox)?;
    actor.ready(1, 0)?;
    let _ready = set.wait(Deadline::NEVER)?;
    let inbox = set.get_mut(token).ok_or("the port left its set")?;
    drop(inbox.receive(Access::Later, Deadline::NOW)?);
    stay()
}

/// Has a channel, and reads it.
fn read(actor: &Actor) -> Result<(), Failure> {
    have_channel(actor, &ChannelOptions::named(CHANNEL).reliable())
}

/// Has a channel on which others call, and reads it.
fn read_calls(actor: &Actor) -> Result<(), Failure> {
    have_channel(actor, &ChannelOptions::named(CHANNEL).many_writers())
}

fn have_channel(actor: &Actor, options: &ChannelOptions) -> Result<(), Failure> {
    let channel = actor.domain.make_channel(options)?;
    let _reader = channel.bind_reader(ReaderOptions::default())?;
    // The channel's own, and the reader's.
    actor.ready_with(0, 0, 2, 1)?;
    stay()
}

/// Wants to know when nobody can send any more; so far somebody can.
fn await_no_more_senders(actor: &Actor) -> Result<(), Failure> {
    let inbox = actor.domain.bind(PortOptions::named(INBOX))?;
    let end = Instant::now() + PATIENCE;
    while inbox.senders() == 0 {
        if Instant::now() > end {
            return Err("nobody connects".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    inbox.request_no_more_senders();
    actor.ready(1, 0)?;
    stay()
}

// Victims: one call after the cue.

fn connect(actor: &Actor) -> Result<SendRight, Failure> {
    Ok(actor.domain.connect(INBOX, PATIENCE)?)
}

fn bind(actor: &Actor) -> Result<(), Failure> {
    actor.await_cue()?;
    let _port = actor.domain.bind(PortOptions::named("late"))?;
    Ok(())
}

/// One extent is held, one is on its way.
fn send_extents(actor: &Actor) -> Result<(), Failure> {
    let inbox = connect(actor)?;
    let _held = actor.domain.allocate(5000)?;
    let mut message = Message::default();
    message.push(actor.domain.allocate(70_000)?)?;
    actor.await_cue()?;
    Ok(inbox.send(message, WhenFull::Fail)?)
}

fn send_port(actor: &Actor) -> Result<(), Failure> {
    let inbox = connect(actor)?;
    let mut message = Message::default();
    message.attach(actor.domain.bind(PortOptions::unnamed())?)?;
    actor.await_cue()?;
    Ok(inbox.send(message, WhenFull::Fail)?)
}

fn send(actor: &Actor) -> Result<(), Failure> {
    let inbox = connect(actor)?;
    actor.await_cue()?;
    Ok(inbox.send(Message::new(b"wake up")?, WhenFull::Fail)?)
}

fn serve(actor: &Actor) -> Result<(), Failure> {
    let options = PortOptions::named(SERVER).synchronous();
    let mut server = actor.domain.bind(options)?;
    actor.await_cue()?;
    drop(server.get_request(Access::Later, PATIENCE)?);
    Ok(())
}

fn allocate(actor: &Actor) -> Result<(), Failure> {
    actor.await_cue()?;
    drop(actor.domain.allocate(5000)?);
    Ok(())
}

/// A chunk that nobody uses goes back to the kernel.
fn give_back(actor: &Actor) -> Result<(), Failure> {
    drop(actor.domain.allocate(5000)?);
    actor.await_cue()?;
    actor.domain.trim()?;
    Ok(())
}

fn allocate_with_a_right(actor: &Actor) -> Result<(), Failure> {
    let _inbox = connect(actor)?;
    allocate(actor)
}

/// Two ports, each one's receive right in the other one's queue.
fn allocate_beside_a_cycle(actor: &Actor) -> Result<(), Failure> {
    let [one, other] = [(); 2].map(|()| actor.domain.bind(PortOptions::unnamed()));
    let (one, other) = (one?, other?);
    let (to_one, to_other) = (one.make_send(), other.make_send());
    for (to, port) in [(to_other, one), (to_one, other)] {
        let mut message = Message::default();
        message.attach(port)?;
        to.send(message, WhenFull::Fail)?;
    }
    allocate(actor)
}

fn watch(actor: &Actor) -> Result<(), Failure> {
    let inbox = connect(actor)?;
    let notify = actor.domain.bind(PortOptions::unnamed())?;
    actor.await_cue()?;
    Ok(inbox.watch(&notify, 1)?)
}

fn write(actor: &Actor) -> Result<(), Failure> {
    let channel = actor.domain.find_channel(CHANNEL, PATIENCE)?;
    actor.await_cue()?;
    channel.bind_writer()?.write(b"news", PATIENCE)?;
    Ok(())
}

fn read_too(actor: &Actor) -> Result<(), Failure> {
    let channel = actor.domain.find_channel(CHANNEL, PATIENCE)?;
    actor.await_cue()?;
    drop(channel.bind_reader(ReaderOptions::default())?);
    Ok(())
}

fn listen(actor: &Actor) -> Result<(), Failure> {
    actor.await_cue()?;
    let mut listener = actor.domain.listen(ListenerOptions::default())?;
    let all = listener.shared();
    listener.on(all, |_| {})?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::SCENES;

    #[test]
    fn every_rule_has_a_scene_and_every_mark_is_one() {
        for rule in portolan::sabotage::RULES {
            assert!(SCENES.iter().any(|s| s.rule == rule), "{rule}");
        }
        for scene in &SCENES {
            assert!(crate::marks::index(scene.mark).is_some(), "{}", scene.mark);
        }
    }
}

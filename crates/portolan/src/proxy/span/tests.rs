//! A node that answers what it should not, and a member that asks so.

use super::{AT_ONCE, Span};
use crate::port::{ConnectError, bind_port, look_for_port, wake_waiters};
use crate::{
    Access, Deadline, Domain, Message, PendingReply, PortOptions, ReceiveError, ReceiveRight,
    Request, RequestError, SendError, SendRight, WhenFull,
};
use portolan_abi::limits::MAX_NODE_NAME;
use portolan_abi::node::{NODE_PORT, NamesAnswer, NodeEntry, NodeName, Says};
use portolan_shm::queue::Home;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A node's port without a node: the test answers as it likes.
struct Liar {
    domain: Domain,
    port: ReceiveRight,
}

impl Liar {
    fn new() -> Self {
        let domain = Domain::private().unwrap();
        let mut home = Home {
            node: [0; MAX_NODE_NAME],
            silent_since: 0,
        };
        home.node[..4].copy_from_slice(b"liar");
        let options = PortOptions::of_node(home);
        let port = bind_port(domain.member(), &options).unwrap();
        Self { domain, port }
    }

    /// What a program gets that asks this, and hears that.
    fn tell(&mut self, name: &str, answer: Message) -> Result<SendRight, ConnectError> {
        let (domain, name) = (self.domain.clone(), name.to_owned());
        let program = std::thread::spawn(move || domain.connect(&name, PATIENCE));
        self.request().reply(answer).unwrap();
        wake_waiters(self.domain.member());
        program.join().unwrap()
    }

    fn request(&mut self) -> Request {
        self.port.get_request(Access::Later, PATIENCE).unwrap()
    }

    fn unnamed(&self) -> ReceiveRight {
        self.domain.bind(PortOptions::unnamed()).unwrap()
    }
}

fn answer(says: Says, nodes: &[&str]) -> Vec<u8> {
    let entry = |node: &&str| NodeEntry {
        name: NodeName::new(node).unwrap(),
        silent_since: 0,
    };
    let entries: Vec<_> = nodes.iter().map(entry).collect();
    NamesAnswer {
        says,
        all: 7,
        entries,
    }
    .encode()
}

#[test]
fn answers_that_no_node_gives_are_errors_that_name_it() {
    let mut liar = Liar::new();
    let found = answer(Says::Found, &["hall"]);
    let mut bad_name = found.clone();
    bad_name[8] = b'@';
    let mut unknown = found.clone();
    unknown[0] = 99;
    let headers = [
        &b""[..],
        b"garbage",
        &found[..found.len() - 1],
        &bad_name,
        &unknown,
        // Without the right; for another question; of no other node.
        &found,
        &answer(Says::Nodes, &["hall"]),
        &answer(Says::NoSuchNode, &[]),
        &[0xff; 4096],
    ];
    for header in headers {
        let outcome = liar.tell("upper", Message::new(header).unwrap());
        assert!(
            matches!(&outcome, Err(ConnectError::BadAnswer { node }) if node == "liar"),
            "{outcome:?}"
        );
    }
    let ambiguous = answer(Says::Ambiguous, &["hall", "roof"]);
    let outcome = liar.tell("upper@hall", Message::new(&ambiguous).unwrap());
    assert!(matches!(outcome, Err(ConnectError::BadAnswer { .. })));
}

#[test]
fn rights_of_other_kinds_in_an_answer_are_dropped() {
    let mut liar = Liar::new();
    let found = answer(Says::Found, &["hall"]);
    let with = |right: crate::Right| {
        let mut message = Message::new(&found).unwrap();
        message.attach(right).unwrap();
        message
    };
    // The right to receive: dropped, it closes the port.
    let port = liar.unnamed();
    let sends = port.make_send();
    let outcome = liar.tell("upper", with(port.into()));
    assert!(matches!(outcome, Err(ConnectError::BadAnswer { .. })));
    assert!(!sends.is_live());
    let port = liar.unnamed();
    let outcome = liar.tell("upper", with(port.make_send_once().into()));
    assert!(matches!(outcome, Err(ConnectError::BadAnswer { .. })));
    let segment = liar.domain.make_segment(None, 4096).unwrap();
    let outcome = liar.tell("upper", with(segment.into()));
    assert!(matches!(outcome, Err(ConnectError::BadAnswer { .. })));
    // Of two, and with extents beside them, one is the program's, and the other is dropped.
    let (one, other) = (liar.unnamed(), liar.unnamed());
    let mut message = with(other.make_send().into());
    message.attach(one.make_send()).unwrap();
    message
        .push(liar.domain.allocate(1 << 20).unwrap())
        .unwrap();
    let right = liar.tell("upper", message).unwrap();
    assert_eq!((one.senders(), other.senders()), (1, 0));
    drop(right);
}

#[test]
fn a_lying_list_of_nodes_ends() {
    let mut liar = Liar::new();
    let listing = |liar: &Liar| {
        let domain = liar.domain.clone();
        std::thread::spawn(move || domain.nodes(PATIENCE))
    };
    // It says that there are seven, and gives the first one again and again, and then none.
    let program = listing(&liar);
    let first = answer(Says::Nodes, &["hall"]);
    for _ in 0..3 {
        let header = Message::new(&first).unwrap();
        liar.request().reply(header).unwrap();
    }
    let none = Message::new(&answer(Says::Nodes, &[])).unwrap();
    liar.request().reply(none).unwrap();
    assert_eq!(program.join().unwrap().unwrap().len(), 3);
    // It says that there are more than any cluster has.
    let program = listing(&liar);
    let full = vec!["hall"; NamesAnswer::MOST];
    let mut bytes = answer(Says::Nodes, &full);
    bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    while !program.is_finished() {
        let request = liar
            .port
            .get_request(Access::Later, Duration::from_millis(20));
        if let Ok(request) = request {
            request.reply(Message::new(&bytes).unwrap()).unwrap();
        }
    }
    let nodes = program.join().unwrap().unwrap();
    assert!(nodes.len() < 66_000, "{}", nodes.len());
    // It answers what it was not asked.
    let program = listing(&liar);
    let found = Message::new(&answer(Says::Found, &["hall"])).unwrap();
    liar.request().reply(found).unwrap();
    let outcome = program.join().unwrap();
    assert!(matches!(outcome, Err(ConnectError::BadAnswer { node }) if node == "liar"));
}

fn ask(domain: &Domain, message: Message) -> PendingReply {
    let node = look_for_port(domain.member(), NODE_PORT).unwrap();
    node.begin_request(message, WhenFull::Fail).unwrap()
}

#[test]
fn questions_that_no_program_asks_are_dropped() {
    let domain = Domain::private().unwrap();
    let mut span = Span::begin(&domain, "here").unwrap();
    let port = domain.bind(PortOptions::unnamed()).unwrap();
    let mut with_right = Message::new(b"what?").unwrap();
    with_right.attach(port.make_send()).unwrap();
    with_right.push(domain.allocate(1 << 16).unwrap()).unwrap();
    let mut asked: Vec<_> = [Message::default(), with_right]
        .into_iter()
        .map(|message| ask(&domain, message))
        .collect();
    assert!(matches!(
        span.take(Deadline::NOW),
        Err(ReceiveError::TimedOut)
    ));
    for pending in &mut asked {
        let outcome = pending.wait(Access::Later, Deadline::NOW);
        assert!(matches!(outcome, Err(RequestError::Dropped)), "{outcome:?}");
    }
    assert_eq!(port.senders(), 0);
    // It takes requests only.
    let node = look_for_port(domain.member(), NODE_PORT).unwrap();
    let refused = node.send(Message::default(), WhenFull::Fail).unwrap_err();
    assert!(matches!(refused.why, SendError::WrongKind(..)));
}

/// Beside a flood of them, a node that does not wait comes back, and is named again.
#[test]
fn a_flood_of_questions_does_not_hold_the_node_up() {
    let domain = Domain::private().unwrap();
    let mut span = Span::begin(&domain, "here").unwrap();
    let flood: Vec<_> = (0..AT_ONCE + 10)
        .map(|_| ask(&domain, Message::default()))
        .collect();
    assert!(span.take(Deadline::NOW).is_err());
    assert_eq!(span.port.depth(), 10);
    let mut set = crate::WaitSet::new(&domain).unwrap();
    let token = set.add(span).unwrap();
    assert_eq!(set.wait(Deadline::NOW).unwrap().next(), Some(token.any()));
    assert!(set.get_mut(token).unwrap().take(Deadline::NOW).is_err());
    assert_eq!(set.wait(Deadline::NOW).unwrap().next(), None);
    drop(flood);
}

/// A member may answer anybody's request as a node that has given its peer up: what is no name is
/// told as less.
#[test]
fn a_lost_node_that_has_no_name_is_a_dead_server() {
    let domain = Domain::private().unwrap();
    let mut port = domain.bind(PortOptions::unnamed().synchronous()).unwrap();
    let right = port.make_send();
    let long = "n".repeat(MAX_NODE_NAME + 1);
    for (node, known) in [("hall", true), ("", false), ("a@b", false), (&long, false)] {
        let mut pending = right
            .begin_request(Message::default(), WhenFull::Fail)
            .unwrap();
        let request = port.get_request(Access::Later, PATIENCE).unwrap();
        let (_, once) = request.into_parts();
        once.unwrap().node_lost(node);
        let outcome = pending.wait(Access::Later, Deadline::NOW);
        let as_it_should = match &outcome {
            Err(RequestError::NodeLost { node: lost }) => known && lost == node,
            Err(RequestError::ServerDead) => !known,
            _ => false,
        };
        assert!(as_it_should, "{node:?} {outcome:?}");
    }
}

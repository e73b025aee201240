//! What the receiver of a proxy port takes, and how it answers.

use crate::{Proxied, structure, with_segment};
use portolan::channel::ChannelOptions;
use portolan::proxy::{Answered, ProxyPort, Taken, asks_for};
use portolan::{
    Access, Deadline, Domain, Message, Notice, PortOptions, ReceiveError, RequestError, Right,
    SendRight, Urgency, WaitSet, WhenFull,
};
use std::time::{Duration, Instant};

#[test]
fn a_message_comes_whole_with_rights_and_deadline() {
    let mut f = Proxied::new(PortOptions::unnamed());
    let mut other = f.domain.bind(PortOptions::unnamed()).unwrap();
    let due = Instant::now() + Duration::from_secs(60);
    let header = [9; 300];
    let mut message = f.domain.message(&header).unwrap();
    for bytes in [100, 70_000] {
        let mut extent = f.domain.allocate(bytes).unwrap();
        extent.fill(5);
        message.push(extent).unwrap();
    }
    let channel = f.domain.make_channel(&ChannelOptions::unnamed()).unwrap();
    let shared = f.domain.share_extent(f.domain.allocate(10).unwrap());
    message.attach(other.make_send()).unwrap();
    message.attach(other.make_send_once()).unwrap();
    message.attach(channel.segment().clone()).unwrap();
    message.attach(shared.unwrap()).unwrap();
    message.set_urgency(Some(Urgency::Deadline(due)));
    f.right.send(message, WhenFull::Fail).unwrap();

    let mut came = f.message();
    assert_eq!((came.header(), came.len()), (&header[..], 70_100));
    assert!(came.slices().all(|part| part.iter().all(|b| *b == 5)));
    let Some(Urgency::Deadline(until)) = came.urgency() else {
        panic!("{came:?}");
    };
    assert!(until.max(due) - until.min(due) < Duration::from_secs(1));
    let rights = came.take_rights();
    let [
        Right::Send(send),
        Right::SendOnce(once),
        Right::Segment(_),
        Right::Shared(_),
    ] = &rights[..]
    else {
        panic!("{rights:?}");
    };
    send.send(Message::new(b"a").unwrap(), WhenFull::Fail)
        .unwrap();
    let _ = once;
    assert_eq!(
        other
            .receive(Access::Later, Deadline::NOW)
            .unwrap()
            .header(),
        b"a"
    );
}

#[test]
fn each_kind_of_answer_reaches_the_client() {
    let mut f = Proxied::new(PortOptions::unnamed().synchronous());
    let ask = |name: &[u8]| {
        f.right
            .begin_request(Message::new(name).unwrap(), WhenFull::Fail)
            .unwrap()
    };
    let mut pending = [ask(b"reply"), ask(b"drop"), ask(b"end"), ask(b"die")];
    let (message, answer) = f.request();
    assert_eq!(message.header(), b"reply");
    answer.reply(Message::new(b"here").unwrap()).unwrap();
    let (message, answer) = f.request();
    assert_eq!(message.header(), b"drop");
    answer.dropped();
    drop(f.request());
    f.request().1.server_dead();
    let mut answers = pending
        .iter_mut()
        .map(|pending| pending.wait(Access::Later, Deadline::NOW));
    assert_eq!(answers.next().unwrap().unwrap().header(), b"here");
    let rest: Vec<_> = answers.map(Result::unwrap_err).collect();
    assert!(
        matches!(
            rest[..],
            [
                RequestError::Dropped,
                RequestError::Dropped,
                RequestError::ServerDead
            ]
        ),
        "{rest:?}"
    );
    // The reply ports are as good as before.
    for _ in 0..4 {
        let mut pending = f.right.begin_request(Message::default(), WhenFull::Fail);
        let (_, answer) = f.request();
        answer.reply(Message::new(b"again").unwrap()).unwrap();
        let answer = pending.as_mut().unwrap().wait(Access::Later, Deadline::NOW);
        assert_eq!(answer.unwrap().header(), b"again");
    }
}

/// Its client may be a node itself, which passes it on.
#[test]
fn a_request_whose_node_is_given_up_ends_as_that() {
    let mut f = Proxied::new(PortOptions::unnamed().synchronous());
    let ask = |right: &SendRight| {
        right
            .begin_request(Message::default(), WhenFull::Fail)
            .unwrap()
    };
    let mut first = Proxied::new(PortOptions::unnamed().synchronous());
    let mut client = ask(&first.right);
    let (_, to_client) = first.request();
    let asks = asks_for(f.right.clone(), "roof").unwrap();
    let mut set = WaitSet::new(&f.domain).unwrap();
    let carried = set.add(ask(&asks)).unwrap();
    f.request().1.node_lost("cellar");
    assert_eq!(set.wait(Deadline::NOW).unwrap().next(), Some(carried.any()));
    let lost = Answered::take(set.get_mut(carried).unwrap()).unwrap();
    assert!(matches!(&lost, Answered::NodeLost { node } if node == "cellar"));
    to_client.give(lost).unwrap();
    let lost = client.wait(Access::Later, Deadline::NOW).unwrap_err();
    assert!(
        matches!(&lost, RequestError::NodeLost { node } if node == "cellar"),
        "{lost}"
    );
    // What is no node's name is told as less, and a client that is gone is not told.
    let mut client = ask(&f.right);
    f.request().1.node_lost("a@b");
    let dead = client.wait(Access::Later, Deadline::NOW);
    assert!(matches!(dead, Err(RequestError::ServerDead)), "{dead:?}");
    drop(ask(&f.right));
    f.request().1.node_lost("cellar");
    // The reply ports are as good as before.
    let mut client = ask(&f.right);
    f.request().1.reply(Message::new(b"here").unwrap()).unwrap();
    let answer = client.wait(Access::Later, Deadline::NOW).unwrap();
    assert_eq!(answer.header(), b"here");
}

#[test]
fn a_client_that_is_gone_gives_the_answer_back() {
    let mut f = Proxied::new(PortOptions::unnamed().synchronous());
    let pending = f.right.begin_request(Message::default(), WhenFull::Fail);
    drop(pending.unwrap());
    let (_, answer) = f.request();
    let refused = answer.reply(Message::new(b"late").unwrap()).unwrap_err();
    assert_eq!(refused.item.header(), b"late");
}

#[test]
fn send_once_rights_are_used_or_dropped() {
    let mut f = Proxied::new(PortOptions::unnamed());
    let (one, two) = (f.proxy.make_send_once(), f.proxy.make_send_once());
    one.send(Message::new(b"once").unwrap()).unwrap();
    drop(two);
    let Taken::Once(message) = f.proxy.take(Deadline::NOW).unwrap() else {
        panic!("the right was used");
    };
    assert_eq!(message.header(), b"once");
    let dropped = f.proxy.take(Deadline::NOW).unwrap();
    assert!(matches!(dropped, Taken::OnceDropped), "{dropped:?}");
    f.proxy.request_no_more_senders();
    assert_eq!(f.proxy.senders(), 1);
    drop(f.right);
    let notice = f.proxy.take(Deadline::NOW).unwrap();
    assert!(matches!(notice, Taken::Notice(Notice::NoMoreSenders)));
    let nothing = f.proxy.take(Deadline::NOW).unwrap_err();
    assert_eq!(nothing, ReceiveError::TimedOut);
}

#[test]
fn what_was_queued_before_and_cannot_travel_is_dropped_counted_and_answered() {
    let domain = Domain::private().unwrap();
    let port = domain.bind(PortOptions::unnamed().synchronous()).unwrap();
    let right = port.make_send();
    let ask = |message| right.begin_request(message, WhenFull::Fail).unwrap();
    let mut pending = [
        ask(structure(&domain)),
        ask(with_segment(&domain)),
        ask(Message::new(b"this one can").unwrap()),
    ];
    let mut proxy = ProxyPort::new(port, "hall").unwrap();
    let Taken::Request(message, answer) = proxy.take(Deadline::NOW).unwrap() else {
        panic!("one can travel");
    };
    assert_eq!(message.header(), b"this one can");
    assert_eq!(proxy.left_behind(), 2);
    answer.reply(Message::default()).unwrap();
    let answers = pending
        .each_mut()
        .map(|p| p.wait(Access::Later, Deadline::NOW));
    assert!(
        matches!(
            answers,
            [
                Err(RequestError::Dropped),
                Err(RequestError::Dropped),
                Ok(_)
            ]
        ),
        "{answers:?}"
    );
    drop(message);
    let survey = domain.survey().unwrap();
    assert_eq!((survey.spaces[0].extents, survey.segments.len()), (0, 0));
}

#[test]
fn a_port_whose_home_is_here_again_takes_everything_and_keeps_its_queue() {
    let mut f = Proxied::new(PortOptions::unnamed());
    let of_proxy = f.proxy.make_send();
    of_proxy
        .send(Message::new(b"queued").unwrap(), WhenFull::Fail)
        .unwrap();
    f.proxy.set_unreachable(Instant::now());
    let mut port = f.proxy.into_receive_right();
    for right in [&f.right, &of_proxy] {
        right.send(structure(&f.domain), WhenFull::Fail).unwrap();
        right.send(with_segment(&f.domain), WhenFull::Fail).unwrap();
    }
    let mut next = || port.receive(Access::Later, Deadline::NOW).unwrap();
    assert_eq!(next().header(), b"queued");
    for _ in 0..2 {
        assert_eq!(
            next().root::<portolan::structure::List<u64>>().unwrap()[0],
            7
        );
        assert_eq!(next().header(), b"with a segment");
    }
}

#[test]
fn a_survey_shows_the_node() {
    let mut f = Proxied::new(PortOptions::named("upper"));
    let _plain = f.domain.bind(PortOptions::named("plain")).unwrap();
    let seen = |f: &Proxied| {
        let survey = f.domain.survey().unwrap();
        let of = |name: &str| {
            let mut ports = survey.ports.iter();
            let port = ports.find(|p| p.name.as_deref() == Some(name)).unwrap();
            (port.node.clone(), port.unreachable)
        };
        (of("upper"), of("plain"))
    };
    let hall = Some("hall".to_owned());
    assert_eq!(seen(&f), ((hall.clone(), false), (None, false)));
    f.proxy.set_unreachable(Instant::now());
    assert_eq!(seen(&f), ((hall, true), (None, false)));
}

#[test]
fn a_wait_set_names_proxy_ports() {
    let f = Proxied::new(PortOptions::unnamed());
    let mut set = WaitSet::new(&f.domain).unwrap();
    let token = set.add(f.proxy).unwrap();
    assert!(set.wait(Duration::from_millis(1)).unwrap().is_empty());
    let right = f.right;
    let sender = std::thread::spawn(move || {
        right
            .send(Message::new(b"it").unwrap(), WhenFull::Fail)
            .unwrap();
        right
    });
    assert_eq!(set.wait(Deadline::NEVER).unwrap().next(), Some(token.any()));
    let taken = set.get_mut(token).unwrap().take(Deadline::NOW).unwrap();
    assert!(matches!(taken, Taken::Message(message) if message.header() == b"it"));
    sender.join().unwrap();
}

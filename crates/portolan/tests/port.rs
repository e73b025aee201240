//! Ports and messages within one process: what is sent arrives, whole, once, in order.

use portolan::{
    Access, BindError, ConnectError, Deadline, Domain, Message, MessageError, Notice, PortOptions,
    ReceiveError, RequestError, Right, SendError, Urgency, WhenFull,
};
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const SOON: Duration = Duration::from_secs(20);

fn domain() -> Domain {
    Domain::private().expect("a private domain")
}

#[test]
fn headers_of_every_length_arrive() -> Outcome {
    let domain = domain();
    for inline in [1, 48, 112, 496] {
        let mut port = domain.bind(PortOptions::unnamed().inline_bytes(inline))?;
        let right = port.make_send();
        for len in (0..140).chain([495, 496, 497, 4095, 4096]) {
            let header: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            right.send(Message::new(&header)?, WhenFull::Fail)?;
            right.send(domain.message(&header)?, WhenFull::Fail)?;
            for _ in 0..2 {
                assert_eq!(
                    port.receive(Access::Later, Deadline::NOW)?.header(),
                    header,
                    "{len} bytes, {inline} inline"
                );
            }
        }
    }
    let too_long = Message::new(&[0; 4097]).unwrap_err();
    assert_eq!(
        too_long,
        MessageError::Header {
            len: 4097,
            limit: 4096
        }
    );
    Ok(())
}

#[test]
fn extents_move_and_keep_their_address() -> Outcome {
    let domain = domain();
    let mut port = domain.bind(PortOptions::unnamed())?;
    let right = port.make_send();
    let mut extent = domain.allocate(10_000)?;
    extent.fill(7);
    let address = extent.address();
    let mut message = Message::new(b"h")?;
    message.push(extent)?;
    right.send(message, WhenFull::Fail)?;
    let mut message = port.receive(Access::Now, Deadline::NOW)?;
    assert_eq!(message.extents()[0].address(), address);
    assert!(message.extents()[0].iter().all(|b| *b == 7));
    // Changed in place and sent on, without a copy.
    message.extents_mut()[0][9_999] = 8;
    right.send(message, WhenFull::Fail)?;
    let message = port.receive(Access::Later, Deadline::NOW)?;
    assert_eq!(
        (message.extents()[0].address(), message.extents()[0][9_999]),
        (address, 8)
    );
    Ok(())
}

#[test]
fn a_message_is_one_byte_sequence() -> Outcome {
    let domain = domain();
    let mut port = domain.bind(PortOptions::unnamed())?;
    let right = port.make_send();
    let mut message = Message::default();
    for (i, len) in (0u8..).zip([4096, 1, 70_000, 0, 33]) {
        let mut extent = domain.allocate(len)?;
        extent.fill(i);
        message.push(extent)?;
    }
    right.send(message, WhenFull::Fail)?;
    let mut message = port.receive(Access::Now, Deadline::NOW)?;
    assert_eq!(message.len(), 4096 + 1 + 70_000 + 33);
    assert_eq!(message.at(4096), Some(&[1][..]));
    assert_eq!(message.at(4097).map(|s| (s.len(), s[0])), Some((70_000, 2)));
    assert_eq!(message.at(74_097).map(|s| (s.len(), s[0])), Some((33, 4)));
    assert_eq!(message.at(74_130), None);
    let mut out = [9; 5];
    assert_eq!(message.read_at(4094, &mut out), 5);
    assert_eq!(out, [0, 0, 1, 2, 2]);
    message.at_mut(4096).unwrap()[0] = 77;
    assert_eq!(message.at(4096).unwrap()[0], 77);
    // Split off, reordered, appended again.
    let tail = message.split_off(2);
    assert_eq!((message.len(), tail.len()), (4097, 3));
    assert!(message.swap(0, 1));
    for extent in tail {
        message.push(extent)?;
    }
    assert_eq!(message.at(0).unwrap()[0], 77);
    assert_eq!(message.slices().count(), 5);
    Ok(())
}

#[test]
fn many_extents_and_rights_travel_in_one_message() -> Outcome {
    let domain = domain();
    let mut port = domain.bind(PortOptions::unnamed())?;
    let right = port.make_send();
    let mut message = Message::new(&[5; 4096])?;
    for i in 0..1024u32 {
        let mut extent = domain.allocate(8)?;
        extent.copy_from_slice(&u64::from(i).to_le_bytes());
        message.push(extent)?;
    }
    let refused = message.push(domain.allocate(1)?).unwrap_err();
    assert_eq!(refused.why, MessageError::Extents { limit: 1024 });
    for _ in 0..64 {
        message.attach(right.clone())?;
    }
    let refused = message.attach(right.clone()).unwrap_err();
    assert_eq!(refused.why, MessageError::Rights { limit: 64 });
    drop(refused);
    right.send(message, WhenFull::Fail)?;
    let mut message = port.receive(Access::Now, Deadline::NOW)?;
    assert_eq!(message.header(), [5; 4096]);
    assert!(
        message
            .extents()
            .iter()
            .enumerate()
            .all(|(i, e)| e[..] == (i as u64).to_le_bytes())
    );
    assert_eq!(message.take_rights().len(), 64);
    Ok(())
}

#[test]
fn memory_flows_back_in_a_one_way_stream() -> Outcome {
    let domain = Domain::builder("stream").limit(8 << 20).private()?;
    let mut port = domain.bind(PortOptions::unnamed().queue(4))?;
    let right = port.make_send();
    for round in 0..2000u32 {
        let mut extent = domain.allocate(1 << 20)?;
        extent[..4].copy_from_slice(&round.to_le_bytes());
        let mut message = Message::default();
        message.push(extent)?;
        right.send(message, WhenFull::Fail)?;
        if round >= 2 {
            let message = port.receive(Access::Later, Deadline::NOW)?;
            assert_eq!(message.at(0).unwrap()[..4], (round - 2).to_le_bytes());
        }
    }
    Ok(())
}

#[test]
fn running_out_is_an_error_and_memory_can_be_cut_anew() -> Outcome {
    let domain = Domain::builder("small").limit(8 << 20).private()?;
    let small: Vec<_> = (0..).map_while(|_| domain.allocate(4096).ok()).collect();
    assert_eq!(small.len(), 4 * 512);
    let full = domain.allocate(4096).unwrap_err();
    assert!(full.to_string().contains("limit is 8388608"), "{full}");
    drop(small);
    // The same memory, in other sizes.
    let large = domain.allocate(4 << 20)?;
    let medium: Vec<_> = (0..).map_while(|_| domain.allocate(1 << 20).ok()).collect();
    assert_eq!(medium.len(), 4);
    drop((large, medium));
    let whole = domain.allocate(8 << 20)?;
    assert!(domain.allocate(1).is_err());
    assert!(domain.allocate(usize::MAX / 2).is_err());
    drop(whole);
    drop(domain.allocate(1)?);
    Ok(())
}

#[test]
fn a_full_queue_waits_fails_or_drops_as_told() -> Outcome {
    let domain = domain();
    let mut port = domain.bind(PortOptions::unnamed().queue(3))?;
    let right = port.make_send();
    let mut sent = 0u8;
    let refused = loop {
        match right.send(Message::new(&[sent])?, WhenFull::Fail) {
            Ok(()) => sent += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(sent, 4);
    assert!(matches!(refused.why, SendError::Full { slots: 4 }));
    assert_eq!(refused.item.header(), [4]);
    right.send(Message::new(b"lost")?, WhenFull::Drop)?;
    let late = right
        .send(
            Message::new(b"late")?,
            Deadline::after(Duration::from_millis(5)),
        )
        .unwrap_err();
    assert_eq!(late.item.header(), b"late");
    let waiting = std::thread::spawn({
        let right = right.clone();
        move || {
            right
                .send(Message::new(b"waited").unwrap(), Deadline::after(SOON))
                .map_err(|e| e.to_string())
        }
    });
    for i in 0..4 {
        assert_eq!(port.receive(Access::Later, SOON)?.header(), [i]);
    }
    assert_eq!(port.receive(Access::Later, SOON)?.header(), b"waited");
    waiting.join().unwrap()?;
    Ok(())
}

#[test]
fn rights_travel_and_dead_names_are_errors() -> Outcome {
    let domain = domain();
    let mut inbox = domain.bind(PortOptions::unnamed())?;
    let to_inbox = inbox.make_send();
    let mut other = domain.bind(PortOptions::unnamed())?;
    let mut message = Message::default();
    message.attach(other.make_send())?;
    message.attach(other.make_send_once())?;
    to_inbox.send(message, WhenFull::Fail)?;
    let mut rights = inbox.receive(Access::Later, Deadline::NOW)?.take_rights();
    let (Some(Right::SendOnce(once)), Some(Right::Send(right))) = (rights.pop(), rights.pop())
    else {
        panic!("two rights")
    };
    right.send(Message::new(b"many")?, WhenFull::Fail)?;
    once.send(Message::new(b"once")?)?;
    assert_eq!(
        other.receive(Access::Later, Deadline::NOW)?.header(),
        b"many"
    );
    assert_eq!(
        other.receive(Access::Later, Deadline::NOW)?.header(),
        b"once"
    );
    drop(other.make_send_once());
    assert_eq!(
        other.receive(Access::Later, Deadline::NOW)?.notice(),
        Some(Notice::SendOnceDropped)
    );
    drop(other);
    assert!(!right.is_live());
    let refused = right
        .send(Message::new(b"nobody")?, WhenFull::Fail)
        .unwrap_err();
    assert!(matches!(refused.why, SendError::DeadName));
    assert_eq!(refused.item.header(), b"nobody");
    // The entry's next port is another one.
    let mut next = domain.bind(PortOptions::unnamed())?;
    assert!(right.send(Message::default(), WhenFull::Fail).is_err());
    assert!(matches!(
        next.receive(Access::Later, Deadline::NOW),
        Err(ReceiveError::TimedOut)
    ));
    Ok(())
}

#[test]
fn a_moved_receive_right_takes_its_queue_along() -> Outcome {
    let domain = domain();
    let mut inbox = domain.bind(PortOptions::unnamed())?;
    let to_inbox = inbox.make_send();
    let mut port = domain.bind(PortOptions::unnamed().queue(8))?;
    let right = port.make_send();
    for i in 0..5u8 {
        right.send(Message::new(&[i])?, WhenFull::Fail)?;
    }
    assert_eq!(port.receive(Access::Later, Deadline::NOW)?.header(), [0]);
    let mut message = Message::default();
    message.attach(port)?;
    to_inbox.send(message, WhenFull::Fail)?;
    // While it travels, messages queue.
    right.send(Message::new(&[5])?, WhenFull::Fail)?;
    let Some(Right::Receive(mut port)) = inbox
        .receive(Access::Later, Deadline::NOW)?
        .take_rights()
        .pop()
    else {
        panic!("a receive right")
    };
    for i in 1..6u8 {
        assert_eq!(port.receive(Access::Later, Deadline::NOW)?.header(), [i]);
    }
    for round in 0..20u8 {
        right.send(Message::new(&[round])?, WhenFull::Fail)?;
        assert_eq!(
            port.receive(Access::Later, Deadline::NOW)?.header(),
            [round]
        );
    }
    // A receive right in a message that is not taken closes its port.
    let mut message = Message::default();
    message.attach(port)?;
    to_inbox.send(message, WhenFull::Fail)?;
    drop(inbox);
    assert!(!right.is_live());
    Ok(())
}

#[test]
fn no_more_senders_and_death_are_told_when_asked() -> Outcome {
    let domain = domain();
    let mut port = domain.bind(PortOptions::unnamed())?;
    let right = port.make_send();
    let second = right.clone();
    port.request_no_more_senders();
    drop(right);
    assert!(matches!(
        port.receive(Access::Later, Deadline::NOW),
        Err(ReceiveError::TimedOut)
    ));
    // In a message it still counts.
    let mut carrier = domain.bind(PortOptions::unnamed())?;
    let mut message = Message::default();
    message.attach(second)?;
    carrier.make_send().send(message, WhenFull::Fail)?;
    assert_eq!(port.senders(), 1);
    assert!(port.receive(Access::Later, Deadline::NOW).is_err());
    drop(carrier.receive(Access::Later, Deadline::NOW)?);
    assert_eq!(
        port.receive(Access::Later, Deadline::NOW)?.notice(),
        Some(Notice::NoMoreSenders)
    );
    assert!(
        port.receive(Access::Later, Deadline::NOW).is_err(),
        "told once"
    );

    let mut notify = domain.bind(PortOptions::unnamed())?;
    let right = port.make_send();
    right.watch(&notify, 41)?;
    right.watch(&notify, 42)?;
    drop(port);
    right.watch(&notify, 43)?;
    let mut tokens: Vec<_> = (0..3)
        .map(|_| {
            notify
                .receive(Access::Later, Deadline::NOW)
                .map(|m| m.notice())
        })
        .collect::<Result<_, _>>()?;
    tokens.sort_by_key(|n| format!("{n:?}"));
    assert_eq!(
        tokens,
        [41, 42, 43].map(|token| Some(Notice::DeadName { token }))
    );
    Ok(())
}

#[test]
fn the_last_send_right_may_end_in_a_port_that_closes() -> Outcome {
    let domain = domain();
    let mut port = domain.bind(PortOptions::unnamed())?;
    let carrier = domain.bind(PortOptions::unnamed())?;
    let mut message = Message::default();
    message.attach(port.make_send())?;
    port.request_no_more_senders();
    carrier.make_send().send(message, WhenFull::Fail)?;
    assert!(port.receive(Access::Later, Deadline::NOW).is_err());
    drop(carrier);
    assert_eq!(
        port.receive(Access::Later, Deadline::NOW)?.notice(),
        Some(Notice::NoMoreSenders)
    );
    Ok(())
}

#[test]
fn a_request_dropped_at_a_full_queue_is_answered() -> Outcome {
    let domain = domain();
    let port = domain.bind(PortOptions::unnamed().synchronous().queue(1))?;
    let right = port.make_send();
    let mut pending = Vec::new();
    for _ in 0..4 {
        pending.push(right.begin_request(Message::default(), WhenFull::Drop)?);
    }
    let last = pending.last_mut().unwrap();
    assert!(matches!(
        last.wait(Access::Later, SOON),
        Err(RequestError::Dropped)
    ));
    Ok(())
}

#[test]
fn an_answer_for_which_there_is_no_page_is_told_all_the_same() -> Outcome {
    let domain = Domain::builder("small").limit(8 << 20).private()?;
    let mut port = domain.bind(PortOptions::unnamed().synchronous())?;
    let mut pending = port
        .make_send()
        .begin_request(Message::default(), WhenFull::Fail)?;
    let request = port.get_request(Access::Later, Deadline::NOW)?;
    let _all: Vec<_> = (0..).map_while(|_| domain.allocate(4096).ok()).collect();
    let unsent = request.reply(Message::new(&[1; 4096])?).unwrap_err();
    assert!(matches!(unsent.why, SendError::Allocate(_)), "{unsent}");
    assert!(matches!(
        pending.wait(Access::Later, Deadline::NOW),
        Err(RequestError::Dropped)
    ));
    Ok(())
}

#[test]
fn requests_are_answered_in_any_order_from_any_thread() -> Outcome {
    let domain = domain();
    let mut port = domain.bind(PortOptions::unnamed().synchronous())?;
    let right = port.make_send();
    assert!(matches!(
        right
            .send(Message::default(), WhenFull::Fail)
            .unwrap_err()
            .why,
        SendError::WrongKind(..)
    ));
    let mut pending: Vec<_> = (0..10u8)
        .map(|i| right.begin_request(Message::new(&[i]).unwrap(), WhenFull::Fail))
        .collect::<Result<_, _>>()?;
    let mut requests: Vec<_> = (0..10)
        .map(|_| port.get_request(Access::Later, SOON))
        .collect::<Result<_, _>>()?;
    drop(requests.remove(4));
    requests.reverse();
    std::thread::spawn(move || {
        for mut request in requests {
            let doubled = request.message.header()[0] * 2;
            request.message.set_header(&[doubled]).unwrap();
            request.reply_in_place().unwrap();
        }
    })
    .join()
    .unwrap();
    for (i, pending) in pending.iter_mut().enumerate() {
        match pending.wait(Access::Later, SOON) {
            Ok(answer) => assert_eq!(usize::from(answer.header()[0]), 2 * i),
            Err(error) => assert!(
                i == 4 && matches!(error, RequestError::Dropped),
                "{i}: {error}"
            ),
        }
    }
    Ok(())
}

#[test]
fn a_client_that_gives_up_and_a_server_that_closes() -> Outcome {
    let domain = domain();
    let mut port = domain.bind(PortOptions::unnamed().synchronous())?;
    let right = port.make_send();
    let late = right.request_reply(
        Message::new(b"a")?,
        Access::Later,
        Deadline::after(Duration::from_millis(3)),
    );
    assert!(matches!(late, Err(RequestError::TimedOut)));
    let request = port.get_request(Access::Later, SOON)?;
    assert!(matches!(
        request.reply(Message::default()).unwrap_err().why,
        SendError::DeadName
    ));
    // One taken but unanswered, one still in the queue.
    let mut first = right.begin_request(Message::new(b"b")?, WhenFull::Fail)?;
    let mut second = right.begin_request(Message::new(b"c")?, WhenFull::Fail)?;
    let taken = port.get_request(Access::Later, SOON)?;
    drop(port);
    assert!(matches!(
        second.wait(Access::Later, SOON),
        Err(RequestError::ServerDead)
    ));
    taken.reply(Message::new(b"still")?)?;
    assert_eq!(first.wait(Access::Later, SOON)?.header(), b"still");
    assert!(matches!(
        right.request_reply(Message::default(), Access::Later, SOON),
        Err(RequestError::Unsent(_))
    ));
    Ok(())
}

#[test]
fn the_most_urgent_message_comes_first() -> Outcome {
    let domain = domain();
    let mut port = domain.bind(PortOptions::unnamed().queue(7).by_urgency())?;
    let right = port.make_send();
    let start = Instant::now();
    let send = |name: &[u8], urgency: Option<Urgency>| -> Outcome {
        let mut message = Message::new(name)?;
        message.set_urgency(urgency);
        Ok(right.send(message, WhenFull::Fail)?)
    };
    for _ in 0..50 {
        send(b"none", None)?;
        send(b"low", Some(Urgency::Priority(1)))?;
        send(
            b"late",
            Some(Urgency::Deadline(start + Duration::from_secs(2))),
        )?;
        send(
            b"early",
            Some(Urgency::Deadline(start + Duration::from_secs(1))),
        )?;
        send(b"high", Some(Urgency::Priority(9)))?;
        assert_eq!(
            port.receive(Access::Later, Deadline::NOW)?.header(),
            b"early"
        );
        send(b"none 2", None)?;
        for expected in [&b"late"[..], b"high", b"low", b"none", b"none 2"] {
            assert_eq!(
                port.receive(Access::Later, Deadline::NOW)?.header(),
                expected
            );
        }
    }
    // Full of messages that wait for a more urgent one.
    let sent = (0..100).take_while(|_| send(b"x", None).is_ok()).count();
    assert!((7..=16).contains(&sent), "{sent}");
    for _ in 0..sent {
        assert_eq!(port.receive(Access::Later, Deadline::NOW)?.header(), b"x");
    }
    assert!(port.receive(Access::Later, Deadline::NOW).is_err());
    Ok(())
}

#[test]
fn names_are_found_waited_for_and_unique() -> Outcome {
    let domain = domain();
    assert!(domain.connect("later", Deadline::NOW).is_err());
    let waiting = std::thread::spawn({
        let domain = domain.clone();
        move || {
            domain
                .connect("later", SOON)
                .map_err(|e| e.to_string())?
                .send(Message::default(), WhenFull::Fail)
                .map_err(|e| e.to_string())
        }
    });
    let mut port = domain.bind(PortOptions::named("later"))?;
    drop(port.receive(Access::Later, SOON)?);
    waiting.join().unwrap()?;
    assert!(matches!(
        domain.bind(PortOptions::named("later")),
        Err(BindError::NameTaken { owner: 1, .. })
    ));
    assert!(matches!(
        domain.bind(PortOptions::named("")),
        Err(BindError::BadName { .. })
    ));
    // Nor is a name waited for that no port can have.
    for name in ["", "with a \0 in it", "name@node", &"n".repeat(64)] {
        let refused = domain.bind(PortOptions::named(name)).err();
        assert!(
            matches!(refused, Some(BindError::BadName { .. })),
            "{name:?}"
        );
        let refused = domain.find_segment(name, Deadline::NEVER).err();
        assert!(
            matches!(refused, Some(ConnectError::BadName { .. })),
            "{name:?}"
        );
    }
    for name in [
        "",
        "with a \0 in it",
        "name@",
        "@node",
        "a@b@c",
        &"n".repeat(64),
    ] {
        let refused = domain.connect(name, Deadline::NEVER).err();
        assert!(
            matches!(refused, Some(ConnectError::BadName { .. })),
            "{name:?}"
        );
    }
    // A node may come.
    let early = domain.connect("name@node", Deadline::NOW).err();
    assert!(matches!(early, Some(ConnectError::NoNode)), "{early:?}");
    drop(port);
    domain.bind(PortOptions::named("later"))?;
    Ok(())
}

#[test]
fn raw_handles_are_taken_up_once() -> Outcome {
    let domain = domain();
    for _ in 0..100 {
        let raw = domain.allocate(100)?.into_raw();
        let adopted = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2)
                .map(|_| scope.spawn(|| domain.adopt(raw).is_ok()))
                .collect();
            threads
                .into_iter()
                .filter(|_| true)
                .map(|t| t.join().unwrap())
                .filter(|won| *won)
                .count()
        });
        assert_eq!(adopted, 1);
        assert!(domain.adopt(raw).is_err(), "it was freed by the winner");
    }
    Ok(())
}

#[test]
fn several_threads_send_and_receive() -> Outcome {
    let domain = domain();
    let shared = domain.bind(PortOptions::unnamed().queue(7))?.share();
    let senders: Vec<_> = (0..3u8)
        .map(|s| {
            let right = shared.make_send();
            std::thread::spawn(move || {
                for i in 0..3000u32 {
                    let mut header = vec![s];
                    header.extend(i.to_le_bytes());
                    right
                        .send(Message::new(&header).unwrap(), Deadline::after(SOON))
                        .unwrap();
                }
            })
        })
        .collect();
    let receivers: Vec<_> = (0..3)
        .map(|_| {
            let shared = shared.clone();
            std::thread::spawn(move || {
                let mut last = [-1i64; 3];
                for _ in 0..3000 {
                    let message = shared.receive(Access::Later, SOON).unwrap();
                    let h = message.header();
                    let (s, i) = (
                        usize::from(h[0]),
                        i64::from(u32::from_le_bytes(h[1..].try_into().unwrap())),
                    );
                    assert!(i > last[s], "sender {s}: {i} after {}", last[s]);
                    last[s] = i;
                }
            })
        })
        .collect();
    for thread in senders.into_iter().chain(receivers) {
        thread.join().unwrap();
    }
    Ok(())
}

#[test]
fn answers_to_clients_that_gave_up_leave_room_for_the_next_ones() -> Outcome {
    let domain = domain();
    let mut port = domain.bind(PortOptions::unnamed().synchronous())?;
    let right = port.make_send();
    // Each client that gives up leaves its reply port's entry to the next.
    let mut late = Vec::new();
    for _ in 0..8 {
        drop(right.begin_request(Message::default(), WhenFull::Fail)?);
        late.push(port.get_request(Access::Later, Deadline::NOW)?);
    }
    let mut pending = right.begin_request(Message::default(), WhenFull::Fail)?;
    let request = port.get_request(Access::Later, Deadline::NOW)?;
    drop(late);
    request.reply(Message::new(b"in time")?)?;
    assert_eq!(
        pending.wait(Access::Later, Deadline::NOW)?.header(),
        b"in time"
    );
    Ok(())
}

#[test]
fn dead_names_leave_the_next_port_of_their_entry_room() -> Outcome {
    let domain = domain();
    let dead = {
        let port = domain.bind(PortOptions::unnamed().queue(3))?;
        port.make_send()
    };
    // Of the same shape: it takes the place of the other.
    let mut port = domain.bind(PortOptions::unnamed().queue(3))?;
    for _ in 0..8 {
        let unsent = dead.send(Message::default(), WhenFull::Fail).unwrap_err();
        assert!(matches!(unsent.why, SendError::DeadName), "{unsent}");
    }
    port.make_send()
        .send(Message::new(b"room")?, WhenFull::Fail)?;
    assert_eq!(
        port.receive(Access::Later, Deadline::NOW)?.header(),
        b"room"
    );
    Ok(())
}

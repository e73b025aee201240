//! Tests that run over each wire: byte rings in memory, and TCP on this machine.
//!
//! Over memory alone run those that need what TCP has not: descriptors that are passed (`Sealed`
//! memory, the memory of the connection itself), a process's pidfd, the counts in the control page,
//! the host's hand-off with the kernel's word for who a client is; and channels, whose wire is the same.

use super::*;

macro_rules! over_each_wire {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[test] fn $test() { super::$test(super::Over::Memory); })*
        }
        mod over_tcp {
            $(#[test] fn $test() { super::$test(super::Over::Tcp); })*
        }
    };
}

over_each_wire! {
    messages_of_all_lengths_go_over_in_order,
    what_cannot_leave_its_domain_is_refused_when_it_is_sent,
    a_full_port_fills_the_lane_and_then_the_proxy,
    the_end_of_a_port_or_an_offer_is_a_dead_name,
    the_end_of_the_last_right_is_the_end_of_the_connection_after_all_has_gone_over,
    requests_go_over_and_answers_come_back,
    requests_are_under_way_side_by_side,
    a_client_that_has_dropped_its_rights_can_leave_and_all_sent_messages_have_gone_over,
}

fn messages_of_all_lengths_go_over_in_order(over: Over) {
    let mut two = plain(over);
    let shapes: &[&[usize]] = &[
        &[],
        &[0],
        &[1],
        &[63, 64, 65],
        &[4096; 70],
        &[0, 0, 5, 0],
        &[100_000, 1, 700_000],
        &[5 << 20],
    ];
    std::thread::scope(|scope| {
        let (right, ours) = (&two.right, &two.ours);
        scope.spawn(move || {
            for round in 0..3 {
                for (at, lengths) in shapes.iter().enumerate() {
                    let message = message(ours, low(at + round * 8), lengths);
                    right.send(message, long()).unwrap();
                }
            }
        });
        for round in 0..3 {
            for (at, lengths) in shapes.iter().enumerate() {
                let came = two.port.receive(Access::Later, long()).unwrap();
                is_the_one(&came, low(at + round * 8), lengths);
            }
        }
    });
    assert_eq!(two.offered.clients(), 1);
    assert!(two.offered.take_violations().is_empty());
}

fn what_cannot_leave_its_domain_is_refused_when_it_is_sent(over: Over) {
    let offer = OfferOptions::default().most_bytes(8192);
    let (bind, connect) = (PortOptions::unnamed(), ConnectOptions::default());
    let two = two(over, bind, offer, connect);
    let error = two
        .right
        .send(message(&two.ours, 1, &[500, 501]), WhenFull::Fail)
        .unwrap_err();
    assert!(matches!(
        error.why,
        SendError::TooLong {
            len: 1001,
            extents: 2,
            bytes: 12288,
            most: 8192
        }
    ));
    is_the_one(&error.item, 1, &[500, 501]);
    let mut rights = Message::new(b"").unwrap();
    let port = two.ours.bind(PortOptions::unnamed()).unwrap();
    rights.attach(port.make_send()).unwrap();
    let error = two.right.send(rights, WhenFull::Fail).unwrap_err();
    assert!(matches!(error.why, SendError::Rights { rights: 1 }));
    let structure = crate::structure::Structure::<u64>::build(&two.ours, |_| Ok(7)).unwrap();
    let error = two
        .right
        .send(structure.into_message(), WhenFull::Fail)
        .unwrap_err();
    assert!(matches!(error.why, SendError::Structure));
}

fn a_full_port_fills_the_lane_and_then_the_proxy(over: Over) {
    let bind = PortOptions::unnamed().queue(3);
    let connect = ConnectOptions::default().queue(3).ring_bytes(64 << 10);
    let mut two = two(over, bind, OfferOptions::default(), connect);
    let mut sent = 0;
    // Each is longer than the byte ring. Until both ports are full, threads may only be slow.
    loop {
        let message = message(&two.ours, sent, &[100_000]);
        let soon = Deadline::after(Duration::from_millis(500));
        match two.right.send(message, soon) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert!(matches!(error.why, SendError::Full { .. }), "{error}");
                if sent >= 6 {
                    break;
                }
            }
        }
        assert!(sent < 20, "nobody is held up");
    }
    for number in 0..sent {
        let came = two.port.receive(Access::Later, long()).unwrap();
        is_the_one(&came, number, &[100_000]);
    }
    two.right.send(message(&two.ours, 9, &[1]), long()).unwrap();
    let came = two.port.receive(Access::Later, long()).unwrap();
    is_the_one(&came, 9, &[1]);
}

fn the_end_of_a_port_or_an_offer_is_a_dead_name(over: Over) {
    let two = plain(over);
    assert!(two.right.is_live());
    drop(two.port);
    until("it is a dead name", || !two.right.is_live());

    let two = plain(over);
    drop(two.offered);
    until("it is a dead name", || !two.right.is_live());
    let error = two
        .right
        .send(message(&two.ours, 1, &[10]), WhenFull::Fail)
        .unwrap_err();
    assert!(matches!(error.why, SendError::DeadName));
    is_the_one(&error.item, 1, &[10]);
}

fn the_end_of_the_last_right_is_the_end_of_the_connection_after_all_has_gone_over(over: Over) {
    let mut two = plain(over);
    let other = two.right.clone();
    for number in 0..20 {
        other
            .send(message(&two.ours, number, &[10_000]), WhenFull::Fail)
            .unwrap();
    }
    drop(other);
    drop(two.right);
    for number in 0..20 {
        let came = two.port.receive(Access::Later, long()).unwrap();
        is_the_one(&came, number, &[10_000]);
    }
    until("the client has left", || two.offered.clients() == 0);
    assert!(two.offered.take_violations().is_empty());
}

fn requests_go_over_and_answers_come_back(over: Over) {
    let bind = PortOptions::unnamed().synchronous();
    let connect = ConnectOptions::default().most_bytes(1 << 20);
    let Two {
        ours,
        _theirs,
        mut port,
        right,
        offered,
    } = two(over, bind, OfferOptions::default(), connect);
    let server = std::thread::spawn(move || {
        for _ in 0..6 {
            let mut request = port.get_request(Access::Later, long()).unwrap();
            let number = low(request.message.header().len());
            match number {
                // Too long to go back.
                3 => {
                    let long = _theirs.allocate((1 << 20) + 1).unwrap();
                    request.message.push(long).unwrap();
                    request.reply_from().unwrap();
                }
                // Not long, but it would take more there than may be.
                4 => request.reply(message(&_theirs, 4, &[1; 256])).unwrap(),
                // Dropped.
                5 => {}
                _ => request
                    .reply(message(&_theirs, number, &[700_000]))
                    .unwrap(),
            }
        }
        // And the port with it, while a request is open.
        drop(port.get_request(Access::Later, long()).unwrap());
        drop(port);
        _theirs
    });
    let ask = |number| right.request_reply(message(&ours, number, &[5, 7]), Access::Later, long());
    for number in [1, 2] {
        is_the_one(&ask(number).unwrap(), number, &[700_000]);
    }
    for number in [3, 4, 5] {
        assert!(matches!(ask(number), Err(crate::RequestError::Dropped)));
    }
    is_the_one(&ask(6).unwrap(), 6, &[700_000]);
    assert!(ask(7).is_err());
    server.join().unwrap();
    until("it is a dead name", || !right.is_live());
    assert!(offered.take_violations().is_empty());
    let error = right.send(Message::default(), WhenFull::Fail).unwrap_err();
    assert!(matches!(error.why, SendError::DeadName));
}

fn a_client_that_has_dropped_its_rights_can_leave_and_all_sent_messages_have_gone_over(over: Over) {
    for _ in 0..20 {
        let Two {
            ours,
            _theirs,
            mut port,
            right,
            offered: _offered,
        } = plain(over);
        for number in 1..4 {
            right
                .send(message(&ours, number, &[5000]), WhenFull::Fail)
                .unwrap();
        }
        drop(right);
        ours.leave().unwrap();
        for number in 1..4 {
            let came = port.receive(Access::Later, long()).unwrap();
            is_the_one(&came, number, &[5000]);
        }
    }
}

fn requests_are_under_way_side_by_side(over: Over) {
    let bind = PortOptions::unnamed().synchronous();
    let offer = OfferOptions::default().most_requests(10);
    let mut two = two(over, bind, offer, ConnectOptions::default());
    let ask = |number: u8| {
        // Both ways there is more than a byte ring or a socket holds.
        let asked = message(&two.ours, number, &[300_000]);
        two.right.begin_request(asked, long()).unwrap()
    };
    let pending: Vec<_> = (0..30).map(ask).collect();
    let mut requests = Vec::new();
    for number in 0..30 {
        let request = two.port.get_request(Access::Later, long()).unwrap();
        is_the_one(&request.message, number, &[300_000]);
        requests.push(request);
        // As many as may be are with the server, and the last of them is answered first.
        if requests.len() == 10 {
            while let Some(request) = requests.pop() {
                request.reply_in_place().unwrap();
            }
        }
    }
    for (number, mut pending) in (0..30).zip(pending) {
        is_the_one(
            &pending.wait(Access::Later, long()).unwrap(),
            number,
            &[300_000],
        );
    }
    assert!(two.offered.take_violations().is_empty());
}

#[test]
fn garbage_over_tcp_ends_its_connection_alone() {
    let mut two = plain(Over::Tcp);
    let frame = FrameHeader {
        extents: 1,
        ..FrameHeader::new(FrameKind::Message)
    };
    let too_long = [&frame.encode()[..], &u64::MAX.to_le_bytes()].concat();
    let sealed = FrameHeader {
        sealed: 1,
        ..FrameHeader::new(FrameKind::Message)
    };
    let no_descriptors = [&sealed.encode()[..], &1_u64.to_le_bytes()].concat();
    let request = FrameHeader::new(FrameKind::Request).encode().to_vec();
    for garbage in [vec![0; 64], too_long, no_descriptors, request] {
        let mut stranger = tcp::stranger(&two.offered, 1 << 20);
        std::io::Write::write_all(&mut stranger, &garbage).unwrap();
        // It is hung up on.
        let end = std::io::Read::read(&mut stranger, &mut [0]);
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
        let mut violations = Vec::new();
        until("the violation is recorded", || {
            violations.extend(two.offered.take_violations());
            !violations.is_empty()
        });
        assert!(matches!(
            violations[0].kind,
            ViolationKind::FrameHeader
                | ViolationKind::TooLong { .. }
                | ViolationKind::Descriptors { named: 1 }
        ));
        two.right
            .send(message(&two.ours, 9, &[100]), long())
            .unwrap();
        is_the_one(&two.port.receive(Access::Later, long()).unwrap(), 9, &[100]);
    }
    // Half a message is none.
    let mut stranger = tcp::stranger(&two.offered, 1 << 20);
    let half = [&frame.encode()[..], &100_u64.to_le_bytes(), &[1; 50]].concat();
    std::io::Write::write_all(&mut stranger, &half).unwrap();
    drop(stranger);
    until("it has left", || two.offered.clients() == 1);
    assert!(two.port.receive(Access::Later, Deadline::NOW).is_err());
    assert!(two.offered.take_violations().is_empty());
}

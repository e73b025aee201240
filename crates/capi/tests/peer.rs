//! A program in C and one in Rust, of one domain: messages with extents, requests, topics, and a
//! death.

mod support;

use portolan::channel::TopicOptions;
use portolan::{Access, Deadline, Domain, Message, PortOptions, RequestError, RightState};
use std::process::{Child, Stdio};
use std::time::Duration;
use support::{compile, here, installed, printed, room, run};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Starts `tests/peer.c` in the domain.
fn peer(test: &str, domain: &str) -> Child {
    let name = format!("peer-{test}");
    let prefix = installed(&name);
    let program = room(&name).join("program");
    compile(&here().join("tests/peer.c"), &prefix, &program);
    let mut command = run(&program, &prefix);
    command.arg(domain).arg(test);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn a_c_program_serves_a_rust_program() {
    let name = portolan_testkit::unique("capi-serve");
    let domain = Domain::join(&name).unwrap();
    let server = peer("serve", &name);
    let right = domain.connect("sum", soon()).unwrap();
    for numbers in [&[1_u32, 2, 3][..], &[u32::MAX, 1]] {
        let mut extent = domain.allocate(4 * numbers.len()).unwrap();
        for (place, number) in extent.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let mut message = Message::new(b"sum").unwrap();
        message.push(extent).unwrap();
        let answer = right.request_reply(message, Access::Later, soon()).unwrap();
        let sum: u64 = numbers.iter().map(|n| u64::from(*n)).sum();
        assert_eq!(answer.header(), sum.to_le_bytes());
        // The same extent, negated where it lies.
        let first = u32::from_le_bytes(answer.extents()[0][..4].try_into().unwrap());
        assert_eq!(first, !numbers[0]);
    }
    let mut subscriber = domain
        .subscriber::<[u8]>("served", TopicOptions::default())
        .unwrap();
    assert_eq!(*subscriber.receive(soon()).unwrap(), *b"2 requests");
    // It ends without an answer, as a program that crashes does.
    let last = Message::new(b"crash").unwrap();
    let answer = right.request_reply(last, Access::Later, soon());
    assert!(
        matches!(answer, Err(RequestError::ServerDead)),
        "{answer:?}"
    );
    assert_eq!(right.state(), RightState::Dead);
    let mut server = server;
    let status = server.wait().unwrap();
    assert_eq!(status.code(), Some(7));
}

#[test]
fn a_c_program_asks_a_rust_program() {
    let name = portolan_testkit::unique("capi-ask");
    let domain = Domain::join(&name).unwrap();
    let options = PortOptions::named("upper").synchronous();
    let mut port = domain.bind(options).unwrap();
    let client = peer("ask", &name);
    let mut request = port.get_request(Access::Later, soon()).unwrap();
    assert_eq!(request.message.header(), b"shout");
    request.message.extents_mut()[0].make_ascii_uppercase();
    request.reply_in_place().unwrap();
    // The second one is dropped, and the port with the third in it.
    drop(port.get_request(Access::Later, soon()).unwrap());
    let third = port.get_request(Access::Later, soon()).unwrap();
    drop(port);
    drop(third);
    let printed = printed(&client.wait_with_output().unwrap());
    assert_eq!(printed, "HELLO FROM C\ndropped: 19\ndead: 17\n");
}

//! Programs and nodes of different builds on one machine: each says both formats, and goes on.

use std::time::Instant;

use portolan_abi::FORMAT_VERSION;
use portolan_abi::hello::{Answer, Hello, Reason, Refusal, socket_name};
use portolan_abi::node::{SpanAnswer, SpanOutcome, SpanRequest};
use portolan_sys::socket::{self, Address};
use portolan_testkit::{PATIENCE, unique, until};

use crate::scene::Machine;

/// The format of another build.
const OTHER: u32 = FORMAT_VERSION + 1;

#[test]
fn a_domain_of_another_format_is_refused_and_both_formats_are_named() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    let local = unique("other-format");
    // Its host is a program of another build.
    let name = socket_name(portolan_sys::process::user(), &local).unwrap();
    let host = socket::listen(&Address::Abstract(name.into_bytes()), 16).unwrap();
    std::thread::spawn(move || {
        while let Ok(client) = socket::accept(&host) {
            let mut hello = [0; Hello::BYTES];
            let _ = socket::receive(&client, &mut hello, 0);
            let refusal = Answer::Refused(Refusal {
                version: OTHER,
                why: Reason::Version,
                value: u64::from(FORMAT_VERSION),
            });
            let _ = socket::send(&client, &refusal.encode(), &[]);
        }
    });
    hall.succeeds(&["span", "cameras", "--local", &local]);
    let says = format!("the domain has format {OTHER} and this program speaks {FORMAT_VERSION}");
    until("it says why it does not span it", || {
        let failure = hall.status()["spans"][0]["failure"].to_string();
        failure.contains(&says)
    });
    assert!(hall.succeeds(&["status"]).contains(&says));
    assert!(hall.log().contains(&says), "and so does its log");
    let error = hall.fails(&["status", "--check"], 1);
    assert!(error.contains("cameras is joining"), "{error}");
}

#[test]
fn a_program_of_another_format_is_told_that_of_the_node_and_others_are_served() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    let path = hall.state.join("programs.sock");
    let ask = |request: &SpanRequest| {
        let program = socket::connect(&Address::Path(path.clone())).unwrap();
        socket::send(&program, &request.encode(), &[]).unwrap();
        let mut bytes = [0; SpanAnswer::MOST];
        let end = Some(Instant::now() + PATIENCE);
        let came = socket::receive_by(&program, &mut bytes, 0, end).unwrap();
        SpanAnswer::decode(&bytes[..came.len]).unwrap()
    };
    let user = portolan_sys::process::user();
    let mut request = SpanRequest::new(&unique("asked"), user, None);
    request.format = OTHER;
    let answer = ask(&request);
    assert_eq!(
        (answer.outcome, answer.format),
        (SpanOutcome::Format, FORMAT_VERSION)
    );
    assert!(
        hall.status()["spans"][0].is_null(),
        "it spans nothing for it"
    );
    // A later version of the question is refused too, and garbage is not answered.
    let mut later = SpanRequest::new(&unique("asked"), user, None);
    later.version += 1;
    assert_eq!(ask(&later).outcome, SpanOutcome::Version);
    let program = socket::connect(&Address::Path(path.clone())).unwrap();
    socket::send(&program, b"let me in", &[]).unwrap();
    let end = Some(Instant::now() + PATIENCE);
    assert!(socket::receive_by(&program, &mut [0; 64], 0, end).is_err());
}

//! Instructions of messages by the C ABI, beside those by the Rust library: counted in user mode, by
//! stepping through a program in C that uses the shared library as it is installed, and through one
//! in Rust that does the same. Asserted in optimised builds alone.

mod support;

use portolan::{Access, Deadline, Domain, Message, PortOptions, ReceiveRight, SendRight};
use portolan::{Waiting, WhenFull};
use portolan_instruments::step::{StepError, Stepper, mark};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

const ROUNDS: usize = 12;
/// The first rounds are not counted: a port's first receive has no slot to give back yet.
const UNCOUNTED: usize = 2;

/// What is counted, in the order of a round; the first is nothing.
const PARTS: usize = 5;

/// The aim: so many times Rust's instructions at the most.
const AIM: f64 = 1.15;

/// What is compared: parts of a round, and how much more C may take than Rust at the most.
const COMPARED: [(&str, &[usize], f64); 3] = [
    ("a message that is used again, in place", &[1, 2], AIM),
    (
        "a message of 48 bytes, made, sent, received, read, freed",
        &[3],
        AIM,
    ),
    (
        "the same, of a page that is allocated and written",
        &[4],
        AIM,
    ),
];

#[inline(always)]
fn part<T>(work: impl FnOnce() -> T) -> T {
    mark();
    let done = work();
    mark();
    done
}

/// Made, sent, received, read and freed, as `header` in `instructions.c`.
#[inline(never)]
fn header(right: &SendRight, port: &mut ReceiveRight, bytes: &[u8]) -> Option<u64> {
    let message = Message::new(bytes).ok()?;
    right.send(message, WhenFull::Fail).ok()?;
    let message = port.receive(Access::Later, Deadline::NEVER).ok()?;
    message
        .header()
        .first_chunk()
        .map(|word| u64::from_ne_bytes(*word))
}

/// The same, of a page, as `page` there.
#[inline(never)]
fn page(domain: &Domain, right: &SendRight, port: &mut ReceiveRight, word: u64) -> Option<u64> {
    let mut extent = domain.allocate(4096).ok()?;
    *extent.first_chunk_mut()? = word.to_ne_bytes();
    let mut message = Message::default();
    message.push(extent).ok()?;
    right.send(message, WhenFull::Fail).ok()?;
    let message = port.receive(Access::Later, Deadline::NEVER).ok()?;
    let word = message.extents().first()?.first_chunk()?;
    Some(u64::from_ne_bytes(*word))
}

/// The program in Rust that is stepped through.
fn counted() {
    let domain = Domain::private().unwrap();
    let mut port = domain
        .bind(PortOptions::unnamed().inline_bytes(48))
        .unwrap();
    port.set_waiting(Waiting::Poll);
    let right = port.make_send();
    let tid = rustix::thread::gettid().as_raw_nonzero();
    println!("\ncounted: {tid}");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let (mut place, mut word) = (Message::default(), 7);
    loop {
        part(|| ());
        part(|| right.send_from(&mut place, WhenFull::Fail)).unwrap();
        part(|| port.receive_into(&mut place, Access::Later, Deadline::NEVER)).unwrap();
        let bytes = black_box([1; 48]);
        part(|| black_box(header(&right, &mut port, black_box(&bytes[..])))).unwrap();
        word = part(|| black_box(page(&domain, &right, &mut port, word))).unwrap();
    }
}

/// The fewest instructions of each part, less those of nothing.
fn count(mut child: Child) -> Result<[u64; PARTS], StepError> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let tid = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("counted: ")?.parse().ok())
        .unwrap();
    let counts = Stepper::seize(tid).and_then(|mut stepper| {
        child.stdin.take().unwrap().write_all(b"g").unwrap();
        let mut fewest = [u64::MAX; PARTS];
        for round in 0..ROUNDS {
            for fewest in &mut fewest {
                stepper.run_to_mark()?;
                let count = stepper.count_to_mark()?;
                if round >= UNCOUNTED {
                    *fewest = (*fewest).min(count);
                }
            }
        }
        Ok(fewest.map(|count| count - fewest[0]))
    });
    child.kill().unwrap();
    child.wait().unwrap();
    counts
}

#[test]
fn a_message_by_the_c_abi_takes_few_instructions_more_than_by_rust() {
    const TEST: &str = "a_message_by_the_c_abi_takes_few_instructions_more_than_by_rust";
    if portolan_testkit::role::<1>().is_some() {
        return counted();
    }
    if cfg!(debug_assertions) {
        // Stepping through code that is not optimised takes minutes, and says nothing.
        println!(
            "counted in optimised builds alone: cargo test --release -p portolan-capi --test instructions"
        );
        return;
    }
    let spawn = |command: &mut Command| {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        piped.spawn().unwrap()
    };
    let prefix = support::installed("instructions");
    let program = support::room("instructions").join("program");
    let source = support::here().join("tests/instructions.c");
    support::compile_optimised(&source, &prefix, &program);
    let in_rust = count(spawn(&mut portolan_testkit::in_role(TEST, &["counted"])));
    let in_c = count(spawn(&mut support::run(&program, &prefix)));
    let (in_rust, in_c) = match (in_rust, in_c) {
        (Ok(in_rust), Ok(in_c)) => (in_rust, in_c),
        (Err(why), _) | (_, Err(why)) => return eprintln!("LEFT OUT: instructions, for {why}"),
    };
    println!("parts in Rust: {in_rust:?}, in C: {in_c:?}");
    for (what, parts, most) in COMPARED {
        let sum = |counts: &[u64; PARTS]| parts.iter().map(|part| counts[*part]).sum::<u64>();
        let (rust, c) = (sum(&in_rust), sum(&in_c));
        let ratio = c as f64 / rust as f64;
        println!("{what}: {c} instructions by C, {rust} by Rust: {ratio:.3}");
        assert!(
            ratio <= most,
            "{what}: {c} instructions by C, {rust} by Rust: {ratio:.3}, and {most} at the most"
        );
    }
}

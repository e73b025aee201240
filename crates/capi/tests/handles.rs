//! What becomes of handles: a wrong one touches nothing, one in use is not waited for, and a call
//! that fails has taken nothing.

use portolan_c::portolan_status::*;
use portolan_c::*;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// What a call put into its place.
fn made<T: Copy>(call: impl FnOnce(Option<&mut MaybeUninit<T>>) -> portolan_status) -> T {
    let mut place = MaybeUninit::<T>::uninit();
    let status = call(Some(&mut place));
    assert_eq!(status, PORTOLAN_OK, "{}", text());
    // SAFETY:
    // - Initialised: the call was answered with PORTOLAN_OK.
    unsafe { place.assume_init() }
}

fn text() -> String {
    // SAFETY:
    // - Ended by a zero, and there until this thread's next call.
    let text = unsafe { CStr::from_ptr(portolan_error_text()) };
    text.to_str().unwrap().to_owned()
}

fn domain() -> portolan_domain {
    // SAFETY:
    // - There are no options.
    made(|place| unsafe { portolan_domain_private(None, place) })
}

fn message(header: &[u8]) -> portolan_message {
    // SAFETY:
    // - So many bytes are there.
    made(|place| unsafe { portolan_message_new(header.as_ptr().cast(), header.len(), place) })
}

fn port(domain: portolan_domain) -> portolan_receive_right {
    // SAFETY:
    // - There are no options.
    made(|place| unsafe { portolan_domain_bind(domain, None, place) })
}

fn header(of: portolan_message) -> Vec<u8> {
    let mut len = MaybeUninit::uninit();
    let data = made(|data| portolan_message_header(of, data, Some(&mut len)));
    // SAFETY:
    // - Initialised by the call that `made` has found to be PORTOLAN_OK.
    let len = unsafe { len.assume_init() };
    // SAFETY:
    // - The message's header, until its next call.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec()
}

fn receive(port: portolan_receive_right, message: portolan_message) -> portolan_status {
    portolan_receive_right_receive(port, message, PORTOLAN_LATER, PORTOLAN_NOW)
}

#[test]
fn wrong_handles_are_told_apart_from_right_ones() {
    let domain = domain();
    let message = message(b"hello");
    let port = port(domain);
    let right = made(|place| portolan_receive_right_make_send(port, place));
    let wrong = [
        0,
        1,
        u64::MAX,
        right.id ^ 1,
        right.id ^ 1 << 16,
        right.id ^ 1 << 40,
        message.id,
        port.id,
        domain.id,
    ];
    for id in wrong {
        let bad = portolan_send_right { id };
        let status = portolan_send_right_send(bad, message, PORTOLAN_FAIL);
        assert_eq!(status, PORTOLAN_BAD_HANDLE, "{id:#x}");
        assert!(
            text().contains(&format!("{id:#x} is no send right")),
            "{}",
            text()
        );
        assert_eq!(portolan_send_right_free(bad), PORTOLAN_BAD_HANDLE);
    }
    // The message was not touched.
    assert_eq!(header(message), b"hello");
    assert_eq!(
        portolan_send_right_send(right, message, PORTOLAN_FAIL),
        PORTOLAN_OK
    );
    assert_eq!(header(message), b"");

    assert_eq!(portolan_send_right_free(right), PORTOLAN_OK);
    assert_eq!(portolan_send_right_free(right), PORTOLAN_BAD_HANDLE);
    // The next one takes its slot, and is another handle.
    let next = made(|place| portolan_receive_right_make_send(port, place));
    assert!(
        (next.id - right.id).is_power_of_two(),
        "one generation later"
    );
    let old = portolan_send_right_send(right, message, PORTOLAN_FAIL);
    assert_eq!(old, PORTOLAN_BAD_HANDLE);
    assert_eq!(receive(port, message), PORTOLAN_OK);
    assert_eq!(header(message), b"hello");
    assert_eq!(receive(port, message), PORTOLAN_TIMED_OUT);
    assert_eq!(text(), "no message came before the deadline");
}

#[test]
fn a_handle_in_use_is_busy_and_is_not_freed() {
    let domain = domain();
    let port = port(domain);
    let right = made(|place| portolan_receive_right_make_send(port, place));
    let waiting = std::thread::spawn(move || {
        let received = message(b"");
        let until = portolan_deadline_after(60_000_000_000);
        loop {
            // Busy itself, as long as the other thread looks in its stead.
            let status = portolan_receive_right_receive(port, received, PORTOLAN_LATER, until);
            if status != PORTOLAN_BUSY {
                return (status, header(received));
            }
        }
    });
    let begun = Instant::now();
    // Until the other thread is in its call; each of these returns at once.
    let other = message(b"");
    while receive(port, other) != PORTOLAN_BUSY {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    assert!(text().contains("another call uses the receive right"));
    assert_eq!(portolan_receive_right_free(port), PORTOLAN_BUSY);
    // A right may be used by any number at once.
    let senders: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                let message = message(b"one of four");
                let sent = portolan_send_right_send(right, message, PORTOLAN_NEVER);
                assert_eq!(portolan_message_free(message), PORTOLAN_OK);
                sent
            })
        })
        .collect();
    for sender in senders {
        assert_eq!(sender.join().unwrap(), PORTOLAN_OK);
    }
    assert_eq!(
        waiting.join().unwrap(),
        (PORTOLAN_OK, b"one of four".to_vec())
    );
    assert_eq!(portolan_receive_right_free(port), PORTOLAN_OK);
    assert_eq!(portolan_receive_right_free(port), PORTOLAN_BAD_HANDLE);
}

#[test]
fn threads_that_make_use_and_free_handles_disturb_nobody() {
    let threads: Vec<_> = (0..4_u8)
        .map(|number| {
            std::thread::spawn(move || {
                for round in 0..2000_u32 {
                    let kept = message(&[number; 9]);
                    let stale = message(&round.to_le_bytes());
                    assert_eq!(portolan_message_free(stale), PORTOLAN_OK);
                    assert_eq!(portolan_message_clear(stale), PORTOLAN_BAD_HANDLE);
                    assert_eq!(header(kept), [number; 9]);
                    assert_eq!(portolan_message_free(kept), PORTOLAN_OK);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn what_a_call_does_not_take_is_the_callers_still() {
    let (one, other) = (domain(), domain());
    let port = port(one);
    let right = made(|place| portolan_receive_right_make_send(port, place));
    let foreign = made(|place| portolan_domain_allocate(other, 4096, place));
    let message = message(b"");
    // A message holds extents of any domain; a port takes those of its own.
    assert_eq!(portolan_message_push(message, foreign), PORTOLAN_OK);
    assert_eq!(portolan_message_push(message, foreign), PORTOLAN_BAD_HANDLE);
    let status = portolan_send_right_send(right, message, PORTOLAN_FAIL);
    assert_eq!(status, PORTOLAN_FOREIGN);
    let extent = made(|place| portolan_message_remove(message, 0, place));
    assert_ne!(extent, foreign);
    assert_eq!(made(|place| portolan_extent_capacity(extent, place)), 4096);

    // A full message, and a right that it does not take.
    for _ in 0..PORTOLAN_MAX_RIGHTS {
        let more = made(|place| portolan_receive_right_make_send(port, place));
        assert_eq!(
            portolan_message_attach_send_right(message, more),
            PORTOLAN_OK
        );
    }
    let status = portolan_message_attach_send_right(message, right);
    assert_eq!(status, PORTOLAN_NO_ROOM);
    let status = portolan_message_attach_receive_right(message, port);
    assert_eq!(status, PORTOLAN_NO_ROOM);
    assert_eq!(
        made(|place| portolan_send_right_state(right, place)),
        PORTOLAN_RIGHT_LIVE
    );
    let (mut depth, mut senders) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    let status = portolan_receive_right_depth(port, Some(&mut depth), Some(&mut senders));
    assert_eq!(status, PORTOLAN_OK);
    // SAFETY:
    // - Initialised: the call was answered with PORTOLAN_OK.
    let senders = unsafe { senders.assume_init() };
    assert_eq!(senders as usize, PORTOLAN_MAX_RIGHTS + 1);

    // A request whose queue takes messages only comes back.
    assert_eq!(portolan_message_clear(message), PORTOLAN_OK);
    assert_eq!(portolan_extent_free(extent), PORTOLAN_OK);
    let own = made(|place| portolan_domain_allocate(one, 4096, place));
    assert_eq!(portolan_message_push(message, own), PORTOLAN_OK);
    let status = portolan_send_right_request_reply(right, message, PORTOLAN_LATER, PORTOLAN_NOW);
    assert_eq!(status, PORTOLAN_WRONG_KIND);
    let mut pending = MaybeUninit::uninit();
    let status =
        portolan_send_right_begin_request(right, message, PORTOLAN_FAIL, Some(&mut pending));
    assert_eq!(status, PORTOLAN_WRONG_KIND);
    let back = made(|place| portolan_message_remove(message, 0, place));
    assert_eq!(portolan_extent_free(back), PORTOLAN_OK);
}

#[test]
fn a_member_of_a_wait_set_is_its_handles_still() {
    let domain = domain();
    let set = made(|place| portolan_wait_set_new(domain, place));
    let ports = [port(domain), port(domain)];
    let rights = ports.map(|port| made(|place| portolan_receive_right_make_send(port, place)));
    for port in ports {
        assert_eq!(portolan_wait_set_add_receive_right(set, port), PORTOLAN_OK);
        assert_eq!(
            portolan_wait_set_add_receive_right(set, port),
            PORTOLAN_BUSY
        );
    }
    let wait = |most: usize| {
        let mut ready = [0; 4];
        let count = made(|count| {
            // SAFETY:
            // - So much room is there.
            unsafe { portolan_wait_set_wait(set, PORTOLAN_NOW, ready.as_mut_ptr(), most, count) }
        });
        let mut named = ready[..count].to_vec();
        named.sort_unstable();
        named
    };
    assert_eq!(wait(4), [0; 0]);
    let note = message(b"");
    for right in rights {
        assert_eq!(set_header(note, b"note"), PORTOLAN_OK);
        assert_eq!(
            portolan_send_right_send(right, note, PORTOLAN_FAIL),
            PORTOLAN_OK
        );
    }
    let mut both = ports.map(|port| port.id);
    both.sort_unstable();
    assert_eq!(wait(4), both);
    // What finds no room is named next.
    let (first, second) = (wait(1), wait(1));
    assert_eq!([first[0].min(second[0]), first[0].max(second[0])], both);
    // Received by its own handle; removed, and freed, it is named no more.
    assert_eq!(receive(ports[0], note), PORTOLAN_OK);
    assert_eq!(header(note), b"note");
    assert_eq!(portolan_wait_set_remove(set, ports[1].id), PORTOLAN_OK);
    assert_eq!(
        portolan_wait_set_remove(set, ports[1].id),
        PORTOLAN_NOT_FOUND
    );
    assert_eq!(wait(4), [0; 0]);
    assert_eq!(receive(ports[1], note), PORTOLAN_OK);
    assert_eq!(portolan_receive_right_free(ports[0]), PORTOLAN_OK);
    assert_eq!(wait(4), [0; 0]);
    // The set goes first: its member is as it was.
    assert_eq!(
        portolan_wait_set_add_receive_right(set, ports[1]),
        PORTOLAN_OK
    );
    assert_eq!(portolan_wait_set_free(set), PORTOLAN_OK);
    assert_eq!(portolan_wait_set_free(set), PORTOLAN_BAD_HANDLE);
    assert_eq!(set_header(note, b"again"), PORTOLAN_OK);
    assert_eq!(
        portolan_send_right_send(rights[1], note, PORTOLAN_FAIL),
        PORTOLAN_OK
    );
    assert_eq!(receive(ports[1], note), PORTOLAN_OK);
    assert_eq!(header(note), b"again");
}

/// With a slice.
fn set_header(of: portolan_message, header: &[u8]) -> portolan_status {
    // SAFETY:
    // - So many bytes are there.
    unsafe { portolan_message_set_header(of, header.as_ptr().cast(), header.len()) }
}

#[test]
fn a_kind_of_which_there_are_too_many_has_no_room() {
    let domain = domain();
    let mut clones = Vec::new();
    let refused = loop {
        let mut place = MaybeUninit::uninit();
        match portolan_domain_clone(domain, Some(&mut place)) {
            // SAFETY:
            // - Initialised: the call was answered with PORTOLAN_OK.
            PORTOLAN_OK => clones.push(unsafe { place.assume_init() }),
            other => break other,
        }
    };
    assert_eq!(refused, PORTOLAN_NO_ROOM, "{}", text());
    assert!(clones.len() < 1024);
    for clone in clones {
        assert_eq!(portolan_domain_free(clone), PORTOLAN_OK);
    }
    let clone = made(|place| portolan_domain_clone(domain, place));
    assert_eq!(portolan_domain_leave(clone), PORTOLAN_BUSY);
}

#[test]
fn a_reconnecting_sender_goes_on_and_tells_what_was_lost() {
    let domain = domain();
    // SAFETY:
    // - A text that is ended by a zero.
    let sender = made(|place| unsafe {
        portolan_domain_reconnecting_sender(domain, c"jobs".as_ptr(), place)
    });
    let set = made(|place| portolan_wait_set_new(domain, place));
    assert_eq!(
        portolan_wait_set_add_reconnecting_sender(set, sender),
        PORTOLAN_OK
    );
    let wait = || {
        let mut ready = [0; 4];
        let count = made(|count| {
            // SAFETY:
            // - So much room is there.
            unsafe { portolan_wait_set_wait(set, PORTOLAN_NOW, ready.as_mut_ptr(), 4, count) }
        });
        ready[..count].to_vec()
    };
    let job = message(b"one");
    let send = |place: Option<&mut MaybeUninit<portolan_sent>>| {
        portolan_reconnecting_sender_send(sender, job, PORTOLAN_FAIL, place)
    };
    // There is no port, or no place for what may be lost: the message stays.
    assert_eq!(wait(), [0; 0]);
    let mut place = MaybeUninit::uninit();
    assert_eq!(send(Some(&mut place)), PORTOLAN_NOT_FOUND, "{}", text());
    assert_eq!(send(None), PORTOLAN_BAD_ARGUMENT);
    assert_eq!(header(job), b"one");

    let named = portolan_port_options {
        name: c"jobs".as_ptr(),
        queue: 0,
        inline_bytes: 0,
        synchronous: false,
        by_urgency: false,
        copied: false,
        spanned: false,
    };
    // SAFETY:
    // - The name is a text that is ended by a zero.
    let first = made(|place| unsafe { portolan_domain_bind(domain, Some(&named), place) });
    assert_eq!(wait(), [sender.id]);
    let sent = made(send);
    assert_eq!((sent.receiver, sent.lost), (1, portolan_lost::default()));
    assert!(made(|place| portolan_reconnecting_sender_is_connected(
        sender, place
    )));
    // While another port has the name there is none to bind.
    let mut bound = MaybeUninit::uninit();
    // SAFETY:
    // - As above.
    let status = unsafe {
        portolan_domain_bind_when_free(domain, Some(&named), PORTOLAN_NOW, Some(&mut bound))
    };
    assert_eq!(status, PORTOLAN_NAME_TAKEN, "{}", text());

    assert_eq!(portolan_receive_right_free(first), PORTOLAN_OK);
    // The wait names it, because a send would tell of the death.
    assert_eq!(wait(), [sender.id]);
    let soon = portolan_deadline_after(60_000_000_000);
    // SAFETY:
    // - As above.
    let second =
        made(|place| unsafe { portolan_domain_bind_when_free(domain, Some(&named), soon, place) });
    assert_eq!(set_header(job, b"two"), PORTOLAN_OK);
    let sent = made(send);
    let lost = portolan_lost {
        receiver: 1,
        sent: 1,
        at_most: 1,
    };
    assert_eq!((sent.receiver, sent.lost), (2, lost));
    assert_eq!(receive(second, job), PORTOLAN_OK);
    assert_eq!(header(job), b"two");

    // Told once, by whichever call comes first; the right of a request is another handle.
    let right = made(|place| portolan_reconnecting_sender_right(sender, PORTOLAN_NOW, place));
    assert_eq!(portolan_receive_right_free(second), PORTOLAN_OK);
    let take = || made(|place| portolan_reconnecting_sender_take_lost(sender, place));
    assert_eq!((take().receiver, take().receiver), (2, 0));
    let status = portolan_reconnecting_sender_connect(sender, PORTOLAN_NOW);
    assert_eq!(status, PORTOLAN_NOT_FOUND);
    assert_eq!(portolan_reconnecting_sender_free(sender), PORTOLAN_OK);
    assert_eq!(
        portolan_reconnecting_sender_free(sender),
        PORTOLAN_BAD_HANDLE
    );
    assert_eq!(wait(), [0; 0]);
    assert_eq!(portolan_send_right_free(right), PORTOLAN_OK);
}

/// A listener that waits for signals of a segment's first bytes.
fn listening(domain: portolan_domain, segment: portolan_segment) -> (portolan_listener, *mut u8) {
    extern "C" fn ignore(_: *mut std::ffi::c_void, _: *mut std::ffi::c_void) {}
    let start = made(|place| portolan_segment_data(segment, place, None));
    let listener = made(|place| portolan_domain_listen(domain, None, place));
    let (run, none) = (Some(ignore as _), std::ptr::null_mut());
    made(|place| {
        // SAFETY:
        // - The function needs no context.
        unsafe {
            portolan_listener_on(
                listener,
                PORTOLAN_DELIVERY_LISTENED,
                start,
                64,
                run,
                none,
                place,
            )
        }
    });
    (listener, start.cast())
}

#[test]
fn a_source_signals_until_it_is_freed_and_leaves_the_descriptor_to_its_caller() {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;
    let domain = domain();
    // SAFETY:
    // - There is no name.
    let segment = made(|place| unsafe {
        portolan_domain_make_segment(domain, std::ptr::null(), 4096, place)
    });
    let (listener, start) = listening(domain, segment);
    let address = start.cast();
    let (mut ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let wait = || portolan_listener_wait(listener, portolan_deadline_after(60_000_000_000));

    let bind = |place: Option<&mut _>| {
        portolan_domain_bind_address_to_descriptor(domain, address, ours.as_raw_fd(), place)
    };
    let source = made(bind);
    theirs.write_all(b"x").unwrap();
    assert_eq!(wait(), PORTOLAN_OK);
    assert_eq!(portolan_source_free(source), PORTOLAN_OK);
    assert_eq!(portolan_source_free(source), PORTOLAN_BAD_HANDLE);
    // Still open, and still holds what came.
    let mut byte = [0];
    ours.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"x");
    // Nothing signals the address any more.
    theirs.write_all(b"y").unwrap();
    assert_eq!(
        portolan_listener_wait(listener, PORTOLAN_NOW),
        PORTOLAN_TIMED_OUT
    );

    let timer = made(|place| portolan_domain_bind_address_to_timer(domain, address, 1, 0, place));
    assert_eq!(wait(), PORTOLAN_OK);
    // Once only.
    assert_eq!(
        portolan_listener_wait(listener, PORTOLAN_NOW),
        PORTOLAN_TIMED_OUT
    );
    assert_eq!(portolan_source_free(timer), PORTOLAN_OK);

    let mut place = MaybeUninit::uninit();
    for descriptor in [-1, i32::MIN, i32::MAX] {
        let status = portolan_domain_bind_address_to_descriptor(
            domain,
            address,
            descriptor,
            Some(&mut place),
        );
        assert_eq!(status, PORTOLAN_BAD_ARGUMENT, "{}", text());
    }
    // SIGKILL, and a number that is no signal's.
    for number in [9, -1, 10_000] {
        let status =
            portolan_domain_bind_address_to_unix_signal(domain, address, number, Some(&mut place));
        assert_eq!(status, PORTOLAN_BAD_ARGUMENT, "{}", text());
    }
    let elsewhere = (&raw const place).cast();
    let status = portolan_domain_bind_address_to_timer(domain, elsewhere, 1, 0, Some(&mut place));
    assert_eq!(status, PORTOLAN_OUT_OF_BOUNDS, "{}", text());
}

#[test]
fn a_log_outlives_the_handles_that_it_was_made_of() {
    let domain = domain();
    let memory = || made(|place| portolan_export_memory_new(4096, place));
    let (remote, local) = (memory(), memory());
    let options = portolan_export_options {
        users: std::ptr::null(),
        users_len: 0,
        groups: std::ptr::null(),
        groups_len: 0,
        importers: 0,
        reach: PORTOLAN_REACH_WRITE,
    };
    let name = c"journal".as_ptr();
    let soon = || portolan_deadline_after(60_000_000_000);
    // SAFETY:
    // - A text, and options without arrays.
    let export = made(|place| unsafe {
        portolan_domain_export(domain, remote, name, Some(&options), soon(), place)
    });
    // SAFETY:
    // - A text.
    let import = made(|place| unsafe { portolan_domain_import(domain, name, soon(), place) });
    let map = |start, len, place: Option<&mut _>| {
        portolan_import_map_log(import, local, start, len, 0, place)
    };
    let mut place = MaybeUninit::uninit();
    assert_eq!(map(0, 8192, Some(&mut place)), PORTOLAN_OUT_OF_BOUNDS);
    assert_eq!(
        map(usize::MAX, 2, Some(&mut place)),
        PORTOLAN_BAD_ARGUMENT,
        "{}",
        text()
    );
    let log = made(|place| map(0, 4096, place));
    // Memory has one destination.
    assert_eq!(map(0, 8, Some(&mut place)), PORTOLAN_BUSY, "{}", text());
    assert_eq!(portolan_import_free(import), PORTOLAN_OK);
    assert_eq!(portolan_export_memory_free(local), PORTOLAN_OK);

    let load = || made(|place| portolan_export_memory_load_acquire(remote, 8, place));
    let seven = 7_u64.to_ne_bytes();
    // SAFETY:
    // - Eight bytes are there.
    let status = unsafe { portolan_log_store(log, 8, seven.as_ptr().cast(), 8) };
    assert_eq!(status, PORTOLAN_OK);
    assert_eq!(portolan_log_flush(log), PORTOLAN_OK);
    assert_eq!(load(), 7);
    assert_eq!(portolan_log_store_release(log, 8, 8), PORTOLAN_OK);
    assert_eq!(load(), 8);
    assert_eq!(portolan_log_store_release(log, 4, 9), PORTOLAN_BAD_ARGUMENT);
    assert_eq!(
        portolan_log_store_release(log, 4096, 9),
        PORTOLAN_OUT_OF_BOUNDS
    );
    assert_eq!(portolan_export_unexport(export), PORTOLAN_OK);
    assert_eq!(portolan_log_store_release(log, 8, 9), PORTOLAN_CLOSED);
    // It has failed, and is freed all the same.
    assert_eq!(portolan_log_unmap(log), PORTOLAN_CLOSED, "{}", text());
    assert_eq!(portolan_log_free(log), PORTOLAN_BAD_HANDLE);
    assert_eq!(load(), 8);
}

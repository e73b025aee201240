//! Senders and subscribers that outlive the process at the other end.

use crate::causes::cause;
use crate::deadline::{deadline, portolan_deadline, portolan_when_full, when_full};
use crate::handles::Handle;
use crate::kinds::{
    portolan_domain, portolan_message, portolan_receive_right, portolan_reconnecting_sender,
    portolan_reconnecting_subscriber, portolan_sample, portolan_send_right,
};
use crate::pointers::{place, text};
use crate::port::{options_of, portolan_port_options, portolan_waiting, waiting};
use crate::status::{enter, fail_fixed, portolan_status};
use crate::topic::portolan_topic_options;
use crate::wait_set::{Seat, Seated};
use portolan::channel::SubscribeError;
use portolan::reconnect::{Lost, ReconnectingSender, ReconnectingSubscriber, Update};
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// What may be lost with a receiver that has died, or has closed its port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_lost {
    /// Which receiver: the one that `portolan_sent` named. 0: nothing was lost.
    pub receiver: u64,
    /// Messages that were sent to it in all.
    pub sent: u64,
    /// So many of these, at most, it has not received: the last ones, unless it receives by
    /// urgency. All others were received; whether they were worked off, the receiver alone knew.
    pub at_most: u64,
}

/// A message was sent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_sent {
    /// Which receiver's queue has it: 1 for the first, and one more after each death.
    pub receiver: u64,
    /// What may be lost with the receiver before, if this is the first message since its death.
    pub lost: portolan_lost,
}

fn lost_of(lost: Option<Lost>) -> portolan_lost {
    lost.map_or_else(portolan_lost::default, |lost| portolan_lost {
        receiver: lost.receiver,
        sent: lost.sent,
        at_most: lost.at_most,
    })
}

/// As `portolan_domain_bind`, waiting while another port has the name: for a process that takes the
/// place of one that was killed just now. `options` may be NULL.
///
/// Threads: any, also several at once.
/// Owns: `*port` is the caller's; freed, it closes the port. The options are read and not kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_bind_when_free(
    domain: portolan_domain,
    options: Option<&portolan_port_options>,
    until: portolan_deadline,
    port: Option<&mut MaybeUninit<portolan_receive_right>>,
) -> portolan_status {
    enter(|| {
        let place = place(port)?;
        let domain = domain.share()?;
        // SAFETY:
        // - C's promise.
        let wanted = unsafe { options_of(options) }?;
        let reserved = portolan_receive_right::reserve()?;
        let bound = domain.bind_when_free(wanted, deadline(until));
        place.write(Handle::fill(reserved, Seat::Own(bound.map_err(cause)?)));
        Ok(())
    })
}

/// A sender to the port of this name, which looks the name up when it first sends, and again when
/// the port has died. Nothing waits and nothing is checked here.
///
/// Threads: any, also several at once.
/// Owns: `*sender` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_reconnecting_sender(
    domain: portolan_domain,
    name: *const c_char,
    sender: Option<&mut MaybeUninit<portolan_reconnecting_sender>>,
) -> portolan_status {
    enter(|| {
        let place = place(sender)?;
        let domain = domain.share()?;
        // SAFETY:
        // - C's promise.
        let name = unsafe { text(name) }?;
        let made = domain.reconnecting_sender(name);
        place.write(Handle::insert(Seat::Own(made))?);
        Ok(())
    })
}

impl Seated for portolan_reconnecting_sender {
    type Item = ReconnectingSender;
}

/// Sends the message to the port that has the name now. With a deadline it waits for such a port
/// (`PORTOLAN_NOT_FOUND` if none came), and for room in its queue; with `PORTOLAN_FAIL` and
/// `PORTOLAN_DROP` for neither. What a call that fails has found lost is kept for the next one.
///
/// Threads: one at a time.
/// Owns: `message` is the caller's: empty when it was sent, untouched when not.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reconnecting_sender_send(
    sender: portolan_reconnecting_sender,
    message: portolan_message,
    full: portolan_when_full,
    sent: Option<&mut MaybeUninit<portolan_sent>>,
) -> portolan_status {
    enter(|| {
        let place = place(sent)?;
        let mut message = message.hold()?;
        let sent = sender.with(|sender| {
            let sent = sender.send_from(&mut message, when_full(full));
            sent.map_err(cause)
        })?;
        place.write(portolan_sent {
            receiver: sent.receiver,
            lost: lost_of(sent.lost),
        });
        Ok(())
    })
}

/// Waits until a port has the name, unless the one of the last send lives. Sends nothing.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reconnecting_sender_connect(
    sender: portolan_reconnecting_sender,
    until: portolan_deadline,
) -> portolan_status {
    enter(|| sender.with(|sender| sender.connect(deadline(until)).map_err(cause)))
}

/// A right on the port that has the name, waiting for one as `portolan_reconnecting_sender_connect`
/// does: for requests, which say themselves what became of them. What is sent by it is not counted
/// by the sender.
///
/// Threads: one at a time.
/// Owns: `*right` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reconnecting_sender_right(
    sender: portolan_reconnecting_sender,
    until: portolan_deadline,
    right: Option<&mut MaybeUninit<portolan_send_right>>,
) -> portolan_status {
    enter(|| {
        let place = place(right)?;
        let reserved = portolan_send_right::reserve()?;
        let right = sender.with(|sender| {
            let right = sender.right(deadline(until)).cloned();
            right.map_err(cause)
        })?;
        place.write(Handle::fill(reserved, right));
        Ok(())
    })
}

/// Whether the port of the last send, or of `portolan_reconnecting_sender_connect`, lives.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reconnecting_sender_is_connected(
    sender: portolan_reconnecting_sender,
    is_connected: Option<&mut MaybeUninit<bool>>,
) -> portolan_status {
    enter(|| {
        let place = place(is_connected)?;
        sender.with(|sender| {
            place.write(sender.is_connected());
            Ok(())
        })
    })
}

/// What may be lost with the last receiver, if it has died and no call has told of it: to be asked
/// before a program ends, say. `lost->receiver` is 0 where nothing was.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reconnecting_sender_take_lost(
    sender: portolan_reconnecting_sender,
    lost: Option<&mut MaybeUninit<portolan_lost>>,
) -> portolan_status {
    enter(|| {
        let place = place(lost)?;
        sender.with(|sender| {
            place.write(lost_of(sender.take_lost()));
            Ok(())
        })
    })
}

/// Frees the sender.
///
/// Threads: any.
/// Owns: `sender` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reconnecting_sender_free(
    sender: portolan_reconnecting_sender,
) -> portolan_status {
    enter(|| sender.take_seated().map(drop))
}

/// A publisher left, or died. What it had published was received, or was missed and is counted.
///
/// If the next publisher has taken its place already, samples of that one may have come before, and
/// one notice may stand for several publishers that went between two calls.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_publisher_gone {
    /// The position at which the samples of this number go on.
    pub next: u64,
    /// Samples that were missed since the last one that was received: overwritten before they were
    /// read, left unfinished at the death, or long ones whose memory went with their publisher.
    pub missed: u64,
    /// Which one. The next publisher that comes has this number again, if it is free.
    pub publisher: u8,
}

/// As `portolan_domain_subscriber`; it is told of publishers that left or died. `options` may be
/// NULL.
///
/// Threads: any, also several at once.
/// Owns: `*subscriber` is the caller's, to be freed. The options are read and not kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_reconnecting_subscriber(
    domain: portolan_domain,
    topic: *const c_char,
    options: Option<&portolan_topic_options>,
    subscriber: Option<&mut MaybeUninit<portolan_reconnecting_subscriber>>,
) -> portolan_status {
    enter(|| {
        let place = place(subscriber)?;
        let domain = domain.share()?;
        // SAFETY:
        // - C's promise.
        let topic = unsafe { text(topic) }?;
        let options = crate::topic::options_of(options);
        let made = domain.reconnecting_subscriber::<[u8]>(topic, options);
        place.write(Handle::insert(Seat::Own(made.map_err(cause)?))?);
        Ok(())
    })
}

impl Seated for portolan_reconnecting_subscriber {
    type Item = ReconnectingSubscriber<[u8]>;
}

/// The next sample of any publisher, or that one has gone, waiting until the deadline: also for the
/// publisher that comes after the last has gone. `sample->id` is 0 where one has gone; then, and
/// only then, `*gone` is written.
///
/// Threads: one at a time.
/// Owns: `*sample` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reconnecting_subscriber_receive(
    subscriber: portolan_reconnecting_subscriber,
    until: portolan_deadline,
    sample: Option<&mut MaybeUninit<portolan_sample>>,
    gone: Option<&mut MaybeUninit<portolan_publisher_gone>>,
) -> portolan_status {
    enter(|| {
        let (sample, gone) = (place(sample)?, place(gone)?);
        let reserved = portolan_sample::reserve()?;
        let update = subscriber.with(|subscriber| {
            subscriber
                .receive(deadline(until))
                .map_err(|why| match why {
                    SubscribeError::TimedOut => fail_fixed(
                        portolan_status::PORTOLAN_TIMED_OUT,
                        c"no sample came before the deadline, and no publisher has gone",
                    ),
                    other => cause(other),
                })
        })?;
        match update {
            Update::Sample(taken) => {
                sample.write(Handle::fill(reserved, taken));
            }
            Update::Gone(what) => {
                sample.write(portolan_sample { id: 0 });
                gone.write(portolan_publisher_gone {
                    next: what.next,
                    missed: what.missed,
                    publisher: what.publisher,
                });
            }
            _ => {
                return Err(fail_fixed(
                    portolan_status::PORTOLAN_OTHER,
                    c"the topic told of something that this version has no word for",
                ));
            }
        }
        Ok(())
    })
}

/// How many publishers there are now.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reconnecting_subscriber_live_publishers(
    subscriber: portolan_reconnecting_subscriber,
    publishers: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter(|| {
        let place = place(publishers)?;
        subscriber.with(|subscriber| {
            place.write(subscriber.live_publishers());
            Ok(())
        })
    })
}

/// Chooses how the subscriber waits.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reconnecting_subscriber_set_waiting(
    subscriber: portolan_reconnecting_subscriber,
    how: portolan_waiting,
) -> portolan_status {
    enter(|| {
        let how = waiting(how)?;
        subscriber.with(|subscriber| {
            subscriber.set_waiting(how);
            Ok(())
        })
    })
}

/// Frees the subscriber.
///
/// Threads: any.
/// Owns: `subscriber` is freed; its samples are their handles' still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reconnecting_subscriber_free(
    subscriber: portolan_reconnecting_subscriber,
) -> portolan_status {
    enter(|| subscriber.take_seated().map(drop))
}

//! Topics of bytes: publishing and subscribing. They are those of `[u8]` in Rust.

use crate::causes::cause;
use crate::deadline::{deadline, portolan_deadline};
use crate::handles::Handle;
use crate::kinds::{portolan_domain, portolan_publisher, portolan_sample, portolan_subscriber};
use crate::loan::Publishing;
use crate::pointers::{bytes, place, put, text};
use crate::port::{portolan_waiting, waiting};
use crate::status::{enter, fail, fail_fixed, portolan_status};
use crate::wait_set::{Seat, Seated};
use portolan::channel::{SubscribeError, Subscriber, TopicOptions};
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

/// How a topic is to be. All zeros are what holds if nothing else is said. How many publish and
/// subscribe the first one who does either decides for all.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct portolan_topic_options {
    /// Of a publisher: samples that a late subscriber can get; of a subscriber: earlier samples that
    /// it wants of each publisher. 0 for one.
    pub history: u64,
    /// How many may subscribe at a time; 0 for 32.
    pub subscribers: u64,
    /// Samples of up to so many bytes are copied; a longer one lies in memory of its own, where it
    /// is filled, and read by all. 0 for 4,096.
    pub copied: usize,
    /// How many may publish at a time; 0 for 8.
    pub publishers: u8,
    /// The subscriber wants no earlier samples, whatever `history` says.
    pub no_history: bool,
}

pub(crate) fn options_of(options: Option<&portolan_topic_options>) -> TopicOptions {
    let mut wanted = TopicOptions::default();
    let Some(options) = options else {
        return wanted;
    };
    if options.no_history {
        wanted = wanted.history(0);
    } else if options.history != 0 {
        wanted = wanted.history(options.history);
    }
    if options.subscribers != 0 {
        wanted = wanted.subscribers(options.subscribers);
    }
    if options.copied != 0 {
        wanted = wanted.copied(options.copied);
    }
    if options.publishers != 0 {
        wanted = wanted.publishers(options.publishers);
    }
    wanted
}

/// Publishes samples, of any length, under `topic`. `options` may be NULL.
///
/// Threads: any, also several at once.
/// Owns: `*publisher` is the caller's, to be freed. The options are read and not kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_publisher(
    domain: portolan_domain,
    topic: *const c_char,
    options: Option<&portolan_topic_options>,
    publisher: Option<&mut MaybeUninit<portolan_publisher>>,
) -> portolan_status {
    enter(|| {
        let place = place(publisher)?;
        let domain = domain.share()?;
        // SAFETY:
        // - C's promise.
        let topic = unsafe { text(topic) }?;
        let made = domain.publisher::<[u8]>(topic, options_of(options));
        let publishing = Publishing::new(made.map_err(cause)?);
        place.write(Handle::insert(publishing)?);
        Ok(())
    })
}

/// Publishes a sample. Never waits. `position` may be NULL.
///
/// Threads: one at a time.
/// Owns: the bytes are copied. A loan is given up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_publisher_publish(
    publisher: portolan_publisher,
    data: *const c_void,
    len: usize,
    position: Option<&mut MaybeUninit<u64>>,
) -> portolan_status {
    enter(|| {
        let mut publishing = publisher.hold()?;
        // SAFETY:
        // - C's promise.
        let sample = unsafe { bytes(data, len) }?;
        put(
            position,
            publishing.publisher().publish(sample).map_err(cause)?,
        );
        Ok(())
    })
}

/// Room for a sample of `len` bytes, to be filled in place and published by
/// `portolan_publisher_publish_loan`. Until it is filled it holds an older sample, or anything.
///
/// Threads: one at a time.
/// Owns: the room is the publisher's: write it until it is published, or the publisher's next
/// call, which gives it up.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_publisher_loan(
    publisher: portolan_publisher,
    len: usize,
    data: Option<&mut MaybeUninit<*mut c_void>>,
) -> portolan_status {
    enter(|| {
        let place = place(data)?;
        let mut publishing = publisher.hold()?;
        let room = publishing.loan(len).map_err(cause)?;
        place.write(room.as_mut_ptr().cast());
        Ok(())
    })
}

/// Publishes what was filled in place. `position` may be NULL.
///
/// Threads: one at a time.
/// Owns: the room is not the caller's any more.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_publisher_publish_loan(
    publisher: portolan_publisher,
    position: Option<&mut MaybeUninit<u64>>,
) -> portolan_status {
    enter(|| {
        let published = publisher.hold()?.publish_loan().ok_or_else(|| {
            fail(
                portolan_status::PORTOLAN_NOT_FOUND,
                format_args!("there is no loan to publish: take one first"),
            )
        })?;
        put(position, published.map_err(cause)?);
        Ok(())
    })
}

/// Frees the publisher.
///
/// Threads: any.
/// Owns: `publisher` is freed, with its loan.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_publisher_free(publisher: portolan_publisher) -> portolan_status {
    enter(|| publisher.take().map(drop))
}

/// Subscribes to the samples of all who publish under `topic`, now and later. `options` may be
/// NULL.
///
/// Threads: any, also several at once.
/// Owns: `*subscriber` is the caller's, to be freed. The options are read and not kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_subscriber(
    domain: portolan_domain,
    topic: *const c_char,
    options: Option<&portolan_topic_options>,
    subscriber: Option<&mut MaybeUninit<portolan_subscriber>>,
) -> portolan_status {
    enter(|| {
        let place = place(subscriber)?;
        let domain = domain.share()?;
        // SAFETY:
        // - C's promise.
        let topic = unsafe { text(topic) }?;
        let made = domain.subscriber::<[u8]>(topic, options_of(options));
        place.write(Handle::insert(Seat::Own(made.map_err(cause)?))?);
        Ok(())
    })
}

impl Seated for portolan_subscriber {
    type Item = Subscriber<[u8]>;
}

/// The next sample of any publisher, waiting for it until the deadline.
///
/// Threads: one at a time.
/// Owns: `*sample` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_subscriber_receive(
    subscriber: portolan_subscriber,
    until: portolan_deadline,
    sample: Option<&mut MaybeUninit<portolan_sample>>,
) -> portolan_status {
    enter(|| {
        let place = place(sample)?;
        let reserved = portolan_sample::reserve()?;
        let taken = subscriber.with(|subscriber| {
            subscriber
                .receive(deadline(until))
                .map_err(|why| match why {
                    SubscribeError::TimedOut => fail_fixed(
                        portolan_status::PORTOLAN_TIMED_OUT,
                        c"no sample came before the deadline",
                    ),
                    other => cause(other),
                })
        })?;
        place.write(Handle::fill(reserved, taken));
        Ok(())
    })
}

/// Chooses how the subscriber waits.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_subscriber_set_waiting(
    subscriber: portolan_subscriber,
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
pub extern "C" fn portolan_subscriber_free(subscriber: portolan_subscriber) -> portolan_status {
    enter(|| subscriber.take_seated().map(drop))
}

/// Where a sample is from.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct portolan_sample_origin {
    /// Its number among its publisher's samples.
    pub position: u64,
    /// Samples of that publisher that were missed just before it.
    pub missed: u64,
    /// Who published it.
    pub publisher: u8,
}

/// The sample's bytes. A long one is read where its publisher filled it. `origin` may be NULL.
///
/// Threads: any, also several at once.
/// Owns: the bytes are the sample's: read them until it is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_sample_data(
    sample: portolan_sample,
    data: Option<&mut MaybeUninit<*const c_void>>,
    len: Option<&mut MaybeUninit<usize>>,
    origin: Option<&mut MaybeUninit<portolan_sample_origin>>,
) -> portolan_status {
    enter(|| {
        let (data, len) = (place(data)?, place(len)?);
        let sample = sample.share()?;
        data.write(sample.as_ptr().cast());
        len.write(sample.len());
        put(
            origin,
            portolan_sample_origin {
                position: sample.position(),
                missed: sample.missed(),
                publisher: sample.publisher(),
            },
        );
        Ok(())
    })
}

/// Frees the sample; the memory of a long one goes back when its last sample, in whatever process,
/// is freed.
///
/// Threads: any.
/// Owns: `sample` is freed; its bytes are not to be used any more.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_sample_free(sample: portolan_sample) -> portolan_status {
    enter(|| sample.take().map(drop))
}

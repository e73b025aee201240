//! Channels: streams that are written once for all readers.

use crate::causes::cause;
use crate::deadline::{deadline, portolan_deadline};
use crate::handles::Handle;
use crate::kinds::{
    portolan_channel, portolan_domain, portolan_reader, portolan_segment, portolan_writer,
};
use crate::pointers::{bad, bytes, place, put, text, text_or_none};
use crate::port::{portolan_waiting, waiting};
use crate::status::{enter, fail, fail_fixed, portolan_status};
use crate::wait_set::{Seat, Seated};
use portolan::channel::{
    Channel, ChannelOptions, Lagging, ReadError, Reader, ReaderOptions, Signalling, Since, Writer,
};
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

/// How a channel is to be. All zeros are what holds if nothing else is said: message-consistent
/// (newest data wins), of 1,024 units of a cache line.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct portolan_channel_options {
    /// Under which others find it; NULL for one that is passed on as a right.
    pub name: *const c_char,
    /// Bytes of a unit, a multiple of a cache line of which 16 are its head; 0 for 64.
    pub unit: usize,
    /// Units of the ring, a power of two; 0 for 1,024.
    pub units: u64,
    /// How many readers can have an entry; 0 for 8.
    pub readers: u64,
    /// A number that says what the channel contains, for readers to compare.
    pub content: u64,
    /// Signal at every so many bytes, a multiple of a cache line; 0: at each message.
    pub signal_bytes: u32,
    /// Writers signal no reader: readers poll.
    pub never_signals: bool,
    /// The writer waits for the slowest reader.
    pub reliable: bool,
    /// Any number of processes write, each message in a unit of its own.
    pub many_writers: bool,
}

/// Makes a channel. `options` may be NULL.
///
/// Threads: any, also several at once.
/// Owns: `*channel` is the caller's, to be freed. The options are read and not kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_make_channel(
    domain: portolan_domain,
    options: Option<&portolan_channel_options>,
    channel: Option<&mut MaybeUninit<portolan_channel>>,
) -> portolan_status {
    enter(|| {
        let place = place(channel)?;
        let domain = domain.share()?;
        let mut wanted = ChannelOptions::unnamed();
        if let Some(options) = options {
            // SAFETY:
            // - C's promise.
            if let Some(name) = unsafe { text_or_none(options.name) }? {
                wanted = ChannelOptions::named(name);
            }
            wanted = shaped(wanted, options);
        }
        let made = domain.make_channel(&wanted).map_err(cause)?;
        place.write(Handle::insert(made)?);
        Ok(())
    })
}

fn shaped(mut wanted: ChannelOptions, options: &portolan_channel_options) -> ChannelOptions {
    if options.unit != 0 {
        wanted = wanted.unit(options.unit);
    }
    if options.units != 0 {
        wanted = wanted.units(options.units);
    }
    if options.readers != 0 {
        wanted = wanted.readers(options.readers);
    }
    if options.never_signals {
        wanted = wanted.signal(Signalling::Never);
    } else if options.signal_bytes != 0 {
        wanted = wanted.signal(Signalling::Bytes(options.signal_bytes));
    }
    if options.reliable {
        wanted = wanted.reliable();
    }
    if options.many_writers {
        wanted = wanted.many_writers();
    }
    wanted.content(options.content)
}

/// A right on the channel of this name, waiting until there is one.
///
/// Threads: any, also several at once.
/// Owns: `*channel` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_find_channel(
    domain: portolan_domain,
    name: *const c_char,
    until: portolan_deadline,
    channel: Option<&mut MaybeUninit<portolan_channel>>,
) -> portolan_status {
    enter(|| {
        let place = place(channel)?;
        let domain = domain.share()?;
        // SAFETY:
        // - C's promise.
        let name = unsafe { text(name) }?;
        let found = domain.find_channel(name, deadline(until)).map_err(cause)?;
        place.write(Handle::insert(found)?);
        Ok(())
    })
}

/// The channel that a segment holds, which came in a message.
///
/// Threads: any; the segment by one at a time.
/// Owns: `segment` is freed: it is the channel now. If the call fails it is the caller's still.
/// `*channel` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_channel_of_segment(
    segment: portolan_segment,
    channel: Option<&mut MaybeUninit<portolan_channel>>,
) -> portolan_status {
    enter(|| {
        let place = place(channel)?;
        let segment = segment.hold()?;
        let reserved = portolan_channel::reserve()?;
        portolan_segment::give(segment, |segment| match Channel::try_from(segment) {
            Ok(made) => {
                place.write(Handle::fill(reserved, made));
                Ok(())
            }
            Err(refused) => {
                let status = fail(
                    portolan_status::PORTOLAN_WRONG_KIND,
                    format_args!("the segment is no channel: {}", refused.why),
                );
                Err((Some(refused.item), status))
            }
        })
    })
}

/// What a channel is like.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct portolan_channel_shape {
    /// Bytes of a unit, its head included.
    pub unit: usize,
    /// Units of the ring.
    pub units: u64,
    /// Bytes that one message may have.
    pub longest: usize,
    /// What its maker says of its content.
    pub content: u64,
    /// The first address of its units, for handlers of signals.
    pub start: usize,
    /// The address behind the last.
    pub end: usize,
    /// Whether the writer waits for readers.
    pub is_reliable: bool,
}

/// What the channel is like.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_channel_get_shape(
    channel: portolan_channel,
    shape: Option<&mut MaybeUninit<portolan_channel_shape>>,
) -> portolan_status {
    enter(|| {
        let place = place(shape)?;
        let channel = channel.share()?;
        let addresses = channel.addresses();
        place.write(portolan_channel_shape {
            unit: channel.unit(),
            units: channel.units(),
            longest: channel.longest(),
            content: channel.content(),
            start: addresses.start,
            end: addresses.end,
            is_reliable: channel.is_reliable(),
        });
        Ok(())
    })
}

/// Another right on the same channel.
///
/// Threads: any, also several at once.
/// Owns: `*clone` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_channel_clone(
    channel: portolan_channel,
    clone: Option<&mut MaybeUninit<portolan_channel>>,
) -> portolan_status {
    enter(|| {
        let place = place(clone)?;
        let another = channel.share()?.clone();
        place.write(Handle::insert(another)?);
        Ok(())
    })
}

/// Frees the right; the last right, writer and reader free the memory.
///
/// Threads: any.
/// Owns: `channel` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_channel_free(channel: portolan_channel) -> portolan_status {
    enter(|| channel.take().map(drop))
}

/// Makes this process the one that writes; on a channel of many writers, one of them.
///
/// Threads: any, also several at once.
/// Owns: `*writer` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_channel_bind_writer(
    channel: portolan_channel,
    writer: Option<&mut MaybeUninit<portolan_writer>>,
) -> portolan_status {
    enter(|| {
        let place = place(writer)?;
        let bound = channel.share()?.bind_writer().map_err(cause)?;
        place.write(Handle::insert(bound)?);
        Ok(())
    })
}

/// Writes a message; a reliable channel that is full waits until the deadline. `position` may be
/// NULL.
///
/// Threads: one at a time.
/// Owns: the bytes are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_writer_write(
    writer: portolan_writer,
    data: *const c_void,
    len: usize,
    until: portolan_deadline,
    position: Option<&mut MaybeUninit<u64>>,
) -> portolan_status {
    enter(|| {
        let mut writer = writer.hold()?;
        // SAFETY:
        // - C's promise.
        let data = unsafe { bytes(data, len) }?;
        put(position, written(&mut writer, data, deadline(until))?);
        Ok(())
    })
}

fn written(
    writer: &mut Writer,
    data: &[u8],
    until: portolan::Deadline,
) -> Result<u64, portolan_status> {
    writer.write(data, until).map_err(cause)
}

/// Frees the writer; its readers are told once they have read all.
///
/// Threads: any.
/// Owns: `writer` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_writer_free(writer: portolan_writer) -> portolan_status {
    enter(|| writer.take().map(drop))
}

/// What becomes of a reader that lags, on a reliable channel.
pub type portolan_lagging = u32;

/// The writer waits for it.
pub const PORTOLAN_LAGGING_WAIT: portolan_lagging = 0;
/// It misses what is overwritten, and is told.
pub const PORTOLAN_LAGGING_SKIP: portolan_lagging = 1;
/// It is dropped.
pub const PORTOLAN_LAGGING_DROP: portolan_lagging = 2;

/// How a reader is to be. All zeros are what holds if nothing else is said.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct portolan_reader_options {
    /// How many of the units that were written before it wants, as far as they are there.
    pub since_last: u64,
    /// On a reliable channel, what becomes of it if it lags.
    pub lagging: portolan_lagging,
}

/// A reader of its own pace. `options` may be NULL.
///
/// Threads: any, also several at once.
/// Owns: `*reader` is the caller's, to be freed. The options are read and not kept.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_channel_bind_reader(
    channel: portolan_channel,
    options: Option<&portolan_reader_options>,
    reader: Option<&mut MaybeUninit<portolan_reader>>,
) -> portolan_status {
    enter(|| {
        let place = place(reader)?;
        let options = options.copied().unwrap_or_default();
        let lagging = match options.lagging {
            PORTOLAN_LAGGING_WAIT => Lagging::default(),
            PORTOLAN_LAGGING_SKIP => Lagging::Skip,
            PORTOLAN_LAGGING_DROP => Lagging::Drop,
            _ => {
                return Err(bad(
                    "a reader that lags is waited for, skips, or is dropped",
                ));
            }
        };
        let since = match options.since_last {
            0 => Since::Now,
            units => Since::Last(units),
        };
        let wanted = ReaderOptions::default().lagging(lagging).since(since);
        let bound = channel.share()?.bind_reader(wanted).map_err(cause)?;
        place.write(Handle::insert(Seat::Own(bound))?);
        Ok(())
    })
}

impl Seated for portolan_reader {
    type Item = Reader;
}

/// The units that a reader missed: from one position to before another.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct portolan_missed {
    /// The first one.
    pub from: u64,
    /// The first one that was not missed, or not yet.
    pub to: u64,
}

/// The next message, waiting for it until the deadline. `PORTOLAN_MISSED`: units were overwritten
/// before they were read, `*missed` says which; read on. `PORTOLAN_WRITER_GONE`: all was read; read
/// on to wait for the next writer. `position` and `missed` may be NULL.
///
/// Threads: one at a time.
/// Owns: the bytes are the reader's: there until its next call, of whatever function.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reader_receive(
    reader: portolan_reader,
    until: portolan_deadline,
    data: Option<&mut MaybeUninit<*const c_void>>,
    len: Option<&mut MaybeUninit<usize>>,
    position: Option<&mut MaybeUninit<u64>>,
    missed: Option<&mut MaybeUninit<portolan_missed>>,
) -> portolan_status {
    enter(|| {
        let (data, len) = (place(data)?, place(len)?);
        reader.with(|reader| match reader.receive(deadline(until)) {
            Ok(received) => {
                data.write(received.as_ptr().cast());
                len.write(received.len());
                put(position, received.position());
                Ok(())
            }
            Err(ReadError::TimedOut) => Err(fail_fixed(
                portolan_status::PORTOLAN_TIMED_OUT,
                c"no message came before the deadline",
            )),
            Err(why) => {
                if let ReadError::Missed(units) = why {
                    let (from, to) = (units.from, units.to);
                    put(missed, portolan_missed { from, to });
                }
                Err(cause(why))
            }
        })
    })
}

/// From now on every signalling unit that is written is signalled, by its address, to the handlers
/// that listeners have for it. Add the handlers first, then enable, then read what is there.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reader_enable(reader: portolan_reader) -> portolan_status {
    enter(|| reader.with(|reader| reader.enable().map_err(cause)))
}

/// Ends `portolan_reader_enable`.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reader_disable(reader: portolan_reader) -> portolan_status {
    enter(|| {
        reader.with(|reader| {
            reader.disable();
            Ok(())
        })
    })
}

/// Chooses how the reader waits.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reader_set_waiting(
    reader: portolan_reader,
    how: portolan_waiting,
) -> portolan_status {
    enter(|| {
        let how = waiting(how)?;
        reader.with(|reader| {
            reader.set_waiting(how);
            Ok(())
        })
    })
}

/// Frees the reader; a writer that waited for it goes on.
///
/// Threads: any.
/// Owns: `reader` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_reader_free(reader: portolan_reader) -> portolan_status {
    enter(|| reader.take_seated().map(drop))
}

//! Every word and record that crosses a process: read as something, which survives its own
//! writing.

use arbitrary::{Result, Unstructured};
use portolan_abi::channel::{self, ReaderState, Shape, Stamp, WriterWord};
use portolan_abi::codec::DecodeError;
use portolan_abi::connect::ConnectAnswer;
use portolan_abi::control::{FromHost, FromMember};
use portolan_abi::delegate;
use portolan_abi::hello::{Answer, Greeting, socket_name};
use portolan_abi::limits::LINE;
use portolan_abi::owner::{AllocWord, ChunkWord, Descriptor, Destination, OwnerWord, Size};
use portolan_abi::port::{PortStatus, RightCount, RightWord, SendCount, Travelling};
use portolan_abi::region::{BASE_HIGHEST, BASE_LOWEST, Geometry};
use portolan_abi::rpc::{self, Header};
use portolan_abi::signal::{self, Block};
use portolan_abi::slot::{Meta, SlotState};
use portolan_abi::space::{HostWord, SpaceStatus};
use portolan_abi::sum;
use portolan_abi::thread::Wait;
use portolan_abi::trace::{EventState, EventWords, TraceSwitch};
use portolan_abi::vmmc;
use portolan_shm::bulk::summed;
use portolan_shm::region::read_text;
use std::sync::atomic::AtomicU64;

pub(super) fn run(data: &[u8]) {
    records(data);
    sums(data);
    text(data);
    let _ = words(&mut Unstructured::new(data));
}

fn records(data: &[u8]) {
    let greeting = Greeting::decode(data);
    let again = match &greeting {
        Ok(Greeting::Hello(hello)) => Greeting::decode(&hello.encode()),
        Ok(Greeting::Return(back)) => Greeting::decode(&back.encode()),
        Ok(Greeting::Look(look)) => Greeting::decode(&look.encode()),
        Ok(Greeting::Connect(request)) => Greeting::decode(&request.encode()),
        // Of another format only the first eight bytes mean anything to us.
        Err(DecodeError::Version { .. }) => Greeting::decode(data.get(..8).unwrap_or_default()),
        Err(error) => Err(*error),
    };
    assert_eq!(again, greeting);
    let answer = Answer::decode(data);
    assert_eq!(answer.and_then(|a| Answer::decode(&a.encode())), answer);
    let answer = ConnectAnswer::decode(data);
    let again = answer
        .clone()
        .and_then(|a| ConnectAnswer::decode(&a.encode()));
    assert_eq!(again, answer);
    let ask = vmmc::Ask::decode(data);
    assert_eq!(ask.and_then(|a| vmmc::Ask::decode(&a.encode())), ask);
    let answer = vmmc::Answer::decode(data);
    assert_eq!(
        answer.and_then(|a| vmmc::Answer::decode(&a.encode())),
        answer
    );
    if let Ok(vmmc::Answer::Granted(granted)) = answer {
        let inside = |(start, bytes): &(u64, u64)| {
            *bytes > 0
                && start
                    .checked_add(*bytes)
                    .is_some_and(|end| end <= granted.len)
        };
        assert!(granted.ranges.as_slice().iter().all(inside));
    }
    if let Ok(said) = FromMember::decode(data) {
        let again = said.encode();
        assert!(again.len() <= FromMember::MAX_BYTES);
        assert_eq!(again, data);
    }
    let request = delegate::Request::decode(data);
    assert_eq!(
        request.and_then(|r| delegate::Request::decode(&r.encode())),
        request
    );
    if let Ok(request) = request {
        assert!(request.part as usize * delegate::PART + request.len as usize <= delegate::STAGING);
    }
    let reply = delegate::Reply::decode(data);
    assert_eq!(
        reply.and_then(|r| delegate::Reply::decode(&r.encode())),
        reply
    );
    let tail = data.get(delegate::Delegation::BYTES..).unwrap_or_default();
    let head = data.get(..delegate::Delegation::BYTES).unwrap_or_default();
    let both = delegate::Delegation::decode(head)
        .ok()
        .zip(delegate::Request::decode(tail).ok());
    if let Some((delegation, request)) = both {
        assert_eq!(
            delegate::Delegation::decode(&delegation.encode()),
            Ok(delegation)
        );
        let place = delegation.place(request.act, request.offset, request.len.into());
        assert!(place.is_none_or(|at| {
            at >= delegation.address
                && at + u64::from(request.len) <= delegation.address + delegation.len
        }));
    }
    let said = FromHost::decode(data);
    assert_eq!(said.and_then(|s| FromHost::decode(&s.encode())), said);
}

fn sums(data: &[u8]) {
    let words: Vec<_> = data.chunks(8).map(|_| AtomicU64::new(0)).collect();
    let mut copy = vec![0; data.len()];
    let there = summed::store(&words, data);
    let back = summed::load(&words, &mut copy);
    let sums = [sum::of(data), there, back];
    assert_eq!((sums, &copy[..]), ([sums[0]; 3], data));
}

/// Names, as they stand in tables, in socket names and in the place of a region.
fn text(data: &[u8]) {
    let words: Vec<_> = data
        .chunks_exact(8)
        .filter_map(|c| Some(AtomicU64::new(u64::from_le_bytes(c.try_into().ok()?))))
        .collect();
    assert!(!read_text(&words).contains('\0'));
    let name = String::from_utf8_lossy(data);
    if let Some(socket) = socket_name(7, &name) {
        assert!(socket.len() < 107 && !socket.contains('\0'), "{socket:?}");
    }
    if let Some(geometry) = Geometry::new(1 << 30) {
        let base = geometry.base(7, data, 0);
        assert!((BASE_LOWEST..BASE_HIGHEST).contains(&base));
    }
}

fn words(u: &mut Unstructured<'_>) -> Result<()> {
    while !u.is_empty() {
        let pair: [u64; 2] = [u.arbitrary()?, u.arbitrary()?];
        message(pair);
        memory(pair);
        stream(pair);
        call(pair);
        notice(pair);
        let seven = u.arbitrary()?;
        if let Some(event) = EventWords::unpack(seven) {
            assert_eq!(EventWords::unpack(event.pack()), Some(event));
        }
    }
    Ok(())
}

/// Slots, rights, ports.
fn message([word, other]: [u64; 2]) {
    let state = SlotState(word);
    assert_eq!(state.with_phase(state.phase()).position(), state.position());
    let _ = (state.space(), state.flags(), format!("{state:?}"));
    let meta = Meta::unpack(word);
    assert_eq!(Meta::unpack(meta.pack()), meta);
    assert!(meta.inline_bytes() >= 8 * meta.descriptor_words());
    if let Some(plain) = Meta::read_plain(word) {
        assert_eq!(Meta::read_plain(Meta::plain(plain)), Some(plain));
        assert_eq!((meta.rights, meta.spilled, meta.urgent), (0, false, false));
    }
    if let Some(right) = RightWord::unpack(word) {
        assert_eq!(RightWord::unpack(right.pack()), Some(right));
    }
    let status = PortStatus::unpack(word);
    // A generation has 24 bits, of which a member writes no more.
    let again = PortStatus::unpack(status.pack());
    assert_eq!((again.phase, again.kept), (status.phase, status.kept));
    assert_eq!(PortStatus::unpack(again.pack()), again);
    let count = RightCount::unpack(other);
    assert_eq!(RightCount::unpack(count.pack()), count);
    assert_eq!(SendCount::unpack(other).pack(), other);
    assert_eq!(Travelling::unpack(other).pack(), other);
    let status = SpaceStatus::unpack(word);
    assert_eq!(SpaceStatus::unpack(status.pack()), status);
    let host = HostWord::unpack(word);
    assert_eq!(HostWord::unpack(host.pack()), host);
    let wait = Wait::unpack(word);
    assert_eq!(Wait::unpack(wait.pack()), wait);
}

/// Extents, chunks, regions.
fn memory([word, other]: [u64; 2]) {
    let alloc = AllocWord(word);
    let _ = (
        alloc.state(),
        alloc.allocator(),
        alloc.born().age(AllocWord(other).born()),
    );
    let owner = OwnerWord(word);
    assert_eq!(
        OwnerWord::new(owner.hold(), owner.generation()).hold(),
        owner.hold()
    );
    let to = Destination(word);
    assert_eq!(Destination::new(to.port(), to.position()), to);
    if let Some(descriptor) = Descriptor::unpack([word, other]) {
        assert_eq!(Descriptor::unpack(descriptor.pack()), Some(descriptor));
        assert!(descriptor.len <= descriptor.size.bytes() as u64);
        assert!(descriptor.size.pages() > 0);
    }
    let chunk = ChunkWord::unpack(word);
    assert_eq!(ChunkWord::unpack(chunk.pack()), chunk);
    // Larger ones are clamped: no region grants them.
    let bytes = usize::try_from(word >> 24).unwrap_or(0);
    let size = Size::for_bytes(bytes);
    assert!(size.bytes() >= bytes || size.chunks() == usize::from(u16::MAX) - 9);
    if let Some(geometry) = Geometry::new(word) {
        assert!(geometry.pool < geometry.len && geometry.trace(255) < geometry.pool);
        let base = geometry.base(1, b"name", 2);
        assert!(base >= BASE_LOWEST && base + geometry.len <= BASE_HIGHEST);
    }
    if let Some(switch) = TraceSwitch::unpack(word) {
        assert_eq!(TraceSwitch::unpack(switch.pack()), Some(switch));
        assert!(Geometry::trace_bytes(switch.ring) > 0);
    }
    let state = EventState::unpack(word);
    assert_eq!(EventState::unpack(state.pack()), state);
}

/// Channels.
fn stream([word, other]: [u64; 2]) {
    let stamp = Stamp(word);
    let done = Stamp::done(stamp.position(), stamp.writer());
    assert_eq!(
        (done.position(), done.writer()),
        (stamp.position(), stamp.writer())
    );
    let _ = stamp.is_same_use(Stamp(other));
    let meta = channel::Meta(word);
    let again = channel::Meta::new(meta.len(), meta.flags(), meta.checksum());
    assert_eq!(again, meta);
    let writer = WriterWord::unpack(word);
    assert_eq!(WriterWord::unpack(writer.pack()), writer);
    let reader = ReaderState::unpack(word);
    assert_eq!(ReaderState::unpack(reader.pack()), reader);
    let unit = usize::try_from(word & 0x1f_ffff).unwrap_or(0);
    for shape in [
        Shape::new(unit, other, word >> 32),
        Shape::new(unit / LINE * LINE, 1 << (other & 31), word >> 56),
    ] {
        match shape {
            Ok(shape) => assert!(shape.len() > shape.units_at() && shape.payload() > 0),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// Packets of calls.
fn call(pair: [u64; 2]) {
    if let Some((header, sum)) = Header::unpack(pair) {
        assert_eq!(Header::unpack(header.pack(sum)), Some((header, sum)));
    }
    let [word, near] = pair;
    let low = rpc::low_24(word);
    // Numbers are counted from one: none is near the end.
    let near = near >> 1;
    let number = rpc::expand(low, near);
    assert!(rpc::low_24(number) == low || number == 0);
    let now = near;
    if let Some(at) = rpc::unpack_deadline(low, now) {
        let back = rpc::unpack_deadline(rpc::pack_deadline(Some(at), now), now);
        assert!(back.is_none_or(|back| back >= at));
    }
    let _ = rpc::pack_deadline(Some(word), now);
}

/// Of a range: its blocks, and as many of the largest as there are offsets for, and one.
const MOST: usize = signal::MAX_BLOCKS + (1 << (signal::OFFSET_BITS - 36)) + 1;

/// Signals.
fn notice([word, other]: [u64; 2]) {
    let slot = signal::Slot(word);
    if let Some(offset) = slot.offset() {
        assert_eq!(
            signal::Slot::full(slot.lap(), offset).offset(),
            Some(offset)
        );
    }
    if let Some((block, handler)) = Block::unpack(word) {
        assert_eq!(Block::unpack(block.pack(handler)), Some((block, handler)));
        assert!(block.hash(1 << 17) < 1 << 17 && block.len() > 0);
        let _ = block.start();
    }
    let blocks: Vec<_> = signal::blocks(word >> 18, other >> 18).take(MOST).collect();
    assert!(blocks.len() < MOST, "a range of so many blocks");
    for pair in blocks.windows(2) {
        assert_eq!(pair[0].start() + pair[0].len(), pair[1].start());
    }
}

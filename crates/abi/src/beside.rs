//! Lays out what stands for a payload that does not lie in a ring, but goes beside it.
//!
//! | in the ring | the payload |
//! |---|---|
//! | a note of a channel, after a [`ParcelStamp`] | a message with an extent or a right, in each reader's inbox: its header is the same stamp |
//! | a call or an answer, which holds the numbers of extents | a message with all extents, at the connection's port: its header is a [`CallParcel`] |
//! | a [`SampleReference`], or the [`BufferName`]s of a structure | segments, which subscribers make rights to by name |

use crate::port::PortName;
use crate::record;

record! {
    /// What joins a parcel and the note that announces it. No two notes of a channel have one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ParcelStamp {
        /// Counts the notes of one writer, also those that failed.
        pub number: u64,
        /// How many writers of the channel had left before that one came.
        pub writers: u32,
        /// A parcel comes with the note. In an inbox: the message is one, and no welcome.
        pub has_parcel: bool,
        _: 3,
    }
}

record! {
    /// The header of the message with the extents of a call or an answer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CallParcel {
        /// The parcel's number, which the call names.
        pub number: u64,
        /// The number of the call.
        pub call: u64,
    }
}

record! {
    /// The name of a segment in which a sample lies, or a part of one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BufferName {
        /// Which port of the entry.
        pub generation: u32,
        /// The entry.
        pub index: u16,
        _: 2,
    }
}

record! {
    /// Where a sample lies.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SampleReference {
        /// Bytes of the sample.
        pub len: u64,
        /// The segment.
        pub buffer: BufferName,
    }
}

impl From<PortName> for BufferName {
    #[inline]
    fn from(port: PortName) -> Self {
        let PortName { index, generation } = port;
        Self { generation, index }
    }
}

impl From<BufferName> for PortName {
    #[inline]
    fn from(name: BufferName) -> Self {
        let BufferName { generation, index } = name;
        Self { index, generation }
    }
}

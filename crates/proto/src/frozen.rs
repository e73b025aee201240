//! Turns a server's state into bytes, so that another process goes on where it stopped.

use crate::call::index;
use crate::entry::{Entry, Stage};
use crate::packet::word;
use crate::server::Server;
use crate::{NotFrozen, Settings, Time};
use portolan_abi::rpc::{Flags, WINDOW};

const MAGIC: u64 = u64::from_le_bytes(*b"portserv");

impl Server {
    /// Its state, for [`Server::thaw`]. Calls that have come and were not taken, and answers
    /// that the client may not have, go along; pieces of calls are asked for again there.
    ///
    /// # Errors
    ///
    /// [`NotFrozen::Running`]: calls that were taken end here first.
    ///
    /// ```
    /// use portolan_proto::{Server, Settings, Time};
    /// let mut here = Server::new(Settings::default(), 7, 1);
    /// let mut there = Server::thaw(Settings::default(), &here.freeze()?)?;
    /// assert_eq!(there.session(), 7);
    /// assert_eq!(there.take(Time::ZERO, &mut Vec::new()), None);
    /// # Ok::<(), portolan_proto::NotFrozen>(())
    /// ```
    pub fn freeze(&mut self) -> Result<Vec<u8>, NotFrozen> {
        let running = self.running();
        if running > 0 {
            return Err(NotFrozen::Running { running });
        }
        let mut out = Vec::new();
        let mut put = |word: u64| out.extend_from_slice(&word.to_le_bytes());
        let numbers = [self.next, self.floor, self.seen, self.cancelled_numbers];
        [MAGIC, self.end.session, self.incarnation]
            .into_iter()
            .chain(numbers)
            .for_each(&mut put);
        for entry in &*self.entries {
            let stage = match entry.stage {
                Stage::Vacant | Stage::Partial | Stage::Running => 0,
                Stage::Ready => 1,
                Stage::Answered => 2,
                Stage::Over => 3,
            };
            let deadline = entry.deadline.map_or(u64::MAX, |d| d.0);
            let len = entry.body.len() as u64;
            for word in [
                entry.number,
                stage | u64::from(entry.flags.0) << 8 | u64::from(entry.status) << 32,
                u64::from(entry.method),
                deadline,
                len,
            ] {
                out.extend_from_slice(&word.to_le_bytes());
            }
            out.extend_from_slice(&entry.body);
        }
        Ok(out)
    }

    /// A server that goes on where another stopped: with its incarnation, so no client
    /// notices. The other must not be used any more.
    ///
    /// # Errors
    ///
    /// [`NotFrozen::Bytes`].
    pub fn thaw(settings: Settings, bytes: &[u8]) -> Result<Self, NotFrozen> {
        let mut at = 0;
        let bad = |at| NotFrozen::Bytes {
            at,
            len: bytes.len(),
        };
        let get = |at: &mut usize| {
            let word = word(bytes, *at).ok_or(bad(*at))?;
            *at += 8;
            Ok(word)
        };
        if get(&mut at)? != MAGIC {
            return Err(bad(0));
        }
        let (session, incarnation) = (get(&mut at)?, get(&mut at)?);
        let mut server = Self::new(settings, session, incarnation);
        server.next = get(&mut at)?;
        server.floor = get(&mut at)?;
        server.seen = get(&mut at)?;
        server.cancelled_numbers = get(&mut at)?;
        if server.next == 0
            || server.seen == 0
            || server.next > u64::MAX / 2
            || server.floor.max(server.seen) > server.next + WINDOW
        {
            return Err(bad(0));
        }
        let mut ready = Vec::new();
        for index_ in 0..server.entries.len() {
            let begin = at;
            let number = get(&mut at)?;
            let [stage, flags, _, _, s0, s1, s2, s3] = get(&mut at)?.to_le_bytes();
            let method = u32::try_from(get(&mut at)?).map_err(|_| bad(begin))?;
            let deadline = get(&mut at)?;
            let len = usize::try_from(get(&mut at)?).map_err(|_| bad(begin))?;
            let end = at.checked_add(len).ok_or(bad(begin))?;
            let body = bytes.get(at..end).ok_or(bad(begin))?;
            at = end;
            let stage = match stage {
                0 => Stage::Vacant,
                1 => Stage::Ready,
                2 => Stage::Answered,
                3 => Stage::Over,
                _ => return Err(bad(begin)),
            };
            // Numbers begin with 1: this place was never used.
            let placed = match number {
                0 => stage == Stage::Vacant,
                _ => index(number) == index_,
            };
            if !placed || number >= server.next.saturating_add(WINDOW) {
                return Err(bad(begin));
            }
            if stage == Stage::Ready && number < server.next {
                ready.push(number);
            }
            server.entries[index_] = Entry {
                number,
                stage,
                method,
                flags: Flags(flags & 15),
                deadline: (deadline != u64::MAX).then_some(Time(deadline)),
                status: u32::from_le_bytes([s0, s1, s2, s3]),
                body: body.to_vec(),
                ..Entry::default()
            };
        }
        if at != bytes.len() {
            return Err(bad(at));
        }
        ready.sort_unstable();
        server.ready = ready.into();
        Ok(server)
    }
}

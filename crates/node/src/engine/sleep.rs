//! What a thread that drives an engine sleeps on, and what of that has fired.
//!
//! Connections and domains are slept on by one system call ([`Poller`](portolan_sys::process::Poller)),
//! which arms them too: a domain's wait set by its futex word, so its descriptor costs nothing.

use std::time::Instant;

use portolan_sys::process::On;

use super::Engine;

/// Keys of domains, by their numbers: of their words, and of the descriptors that a few need. Those of
/// connections are their numbers.
const WORDS: u64 = 1 << 62;
const DESCRIPTORS: u64 = 2 << 62;

impl Engine {
    /// Keys from here on are free for what else the thread sleeps on.
    pub const OTHERS: u64 = 3 << 62;

    /// Arms all domains, and adds what to sleep on; when to step at the latest, beside
    /// [`wake_at`](Self::wake_at).
    pub fn arm<'a>(&'a mut self, on: &mut Vec<(u64, On<'a>)>) -> Option<Instant> {
        // Of one that is held back it is known that there is more; it is looked at when it may be read.
        let links = self.links.iter().filter(|(_, link)| link.held.is_none());
        on.extend(links.map(|(id, link)| (id.0, On::Descriptor(link.connection.descriptor()))));
        let mut by: Option<Instant> = None;
        for (key, span) in &mut self.machine.spans {
            let number = u64::from(key.0);
            let until = match span.set.arm() {
                Ok(Some(armed)) => {
                    on.push((WORDS | number, On::Word(armed.word, armed.value)));
                    let fd = armed.descriptor.map(On::Descriptor);
                    on.extend(fd.map(|fd| (DESCRIPTORS | number, fd)));
                    armed.until
                }
                // Something has come since the step; or the domain is lost, which the next one says.
                Ok(None) | Err(_) => {
                    on.extend([WORDS, DESCRIPTORS].map(|kind| (kind | number, On::Kept)));
                    Some(Instant::now())
                }
            };
            by = by.into_iter().chain(until).min();
        }
        by
    }

    /// Whether something is likely to come soon, for which no program of this machine has to run first:
    /// the step before has asked a peer, or answered one, and has handed nothing to programs here since.
    /// Then it is worth a look before the sleep ([`Poller::look`](portolan_sys::process::Poller::look)).
    pub fn expects_soon(&self) -> bool {
        self.machine.expects
    }

    /// Keys of what has fired. The next step looks only at connections that are among them; without
    /// this, at all.
    pub fn fired(&mut self, keys: &[u64]) {
        for (id, link) in &mut self.links {
            link.polled = Some(keys.contains(&id.0));
        }
    }
}

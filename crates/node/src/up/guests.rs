//! Newcomers at a running node. What they ask is answered on the [disk's](super::disk) thread: it
//! is written down before it is answered (J1, J3).

use std::net::IpAddr;
use std::time::Duration;

use portolan_abi::join::JoinOutcome;
use portolan_transport::{Address, Connection};

use super::Node;
use super::disk::Written;
use crate::join::{Guest, Met, Rates, in_words};

/// Newcomers that are let in at once, at most.
const MOST: usize = 16;

/// Those that are connected, each with its number.
#[derive(Debug, Default)]
pub(super) struct Guests {
    all: Vec<(u64, Guest)>,
    next: u64,
    rates: Rates,
}

impl Guests {
    /// What is to be waited for.
    pub(super) fn connections(&self) -> impl Iterator<Item = &dyn Connection> {
        self.all.iter().map(|(_, guest)| guest.connection())
    }

    /// Until when each must be done.
    pub(super) fn until(&self) -> impl Iterator<Item = Duration> {
        self.all.iter().map(|(_, guest)| guest.until())
    }
}

impl Node {
    /// A newcomer has connected.
    pub(super) fn take_guest(&mut self, connection: Box<dyn Connection>) {
        let now = self.clock.now();
        let remote = connection.remote();
        let from = remote.as_ref().map(ToString::to_string).unwrap_or_default();
        let ip = match remote {
            Some(Address::Internet(address)) => address.ip(),
            _ => IpAddr::from([0, 0, 0, 0]),
        };
        let busy = self.guests.all.len() >= MOST || !self.guests.rates.allow(ip, now);
        let Ok(mut guest) = Guest::new(connection, from.clone(), now) else {
            return;
        };
        if busy {
            self.refused(&from, in_words(JoinOutcome::Busy));
            guest.refuse(JoinOutcome::Busy);
        }
        if self.guests.all.len() < MOST {
            self.guests.next += 1;
            self.guests.all.push((self.guests.next, guest));
        }
    }

    /// Goes on with those that are connected.
    pub(super) fn let_in(&mut self) {
        let (now, today) = (self.clock.now(), self.today());
        let (guests, disk) = (&mut self.guests.all, &mut self.disk);
        guests.retain_mut(|(number, guest)| match guest.step(now) {
            Met::Waits => true,
            Met::Over => false,
            Met::Asks(asked) => {
                let number = *number;
                disk.ask(move |state| Written::Answered(number, asked.answer(state, today)));
                true
            }
        });
    }

    /// The answer to a newcomer, which may be gone.
    pub(super) fn answer_guest(&mut self, number: u64, answer: Vec<u8>) {
        let mut guests = self.guests.all.iter_mut();
        if let Some((_, guest)) = guests.find(|(its, _)| *its == number) {
            guest.answer(answer);
            self.counts.joined += u64::from(guest.is_let_in());
        }
    }
}

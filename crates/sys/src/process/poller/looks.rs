//! Whether a caller that expects something soon looks for it before it sleeps: as long as that pays.
//!
//! To fall asleep and be woken costs a processor that has nothing else to do more than a short look:
//! it halts, and in a virtual machine that is left to the host. But where what is waited for has to run
//! on this processor, each look is in vain, and holds it up.
//!
//! - **K1** After a look in vain so many sleeps go without one, twice as many each time, until looks pay
//!   again: what looks cost that never pay is a thousandth of a sleep's time or so.
//! - **K2** What is there before it is looked for says nothing of whether looking pays.

use std::time::Duration;

/// How long a look is: a few times what a request to another node of this machine takes.
const LONG: Duration = Duration::from_micros(100);
/// Sleeps without a look after the first one in vain, and at the most.
const PAUSE: (u32, u32) = (8, 8192);

#[derive(Debug)]
pub(super) struct Looks {
    /// How long one is.
    pub(super) long: Duration,
    /// Sleeps that go without one from now on.
    left_out: u32,
    /// The same, after the last one in vain.
    pause: u32,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            long: LONG,
            left_out: 0,
            pause: 0,
        }
    }
}

impl Looks {
    /// Whether this sleep begins with a look.
    pub(super) fn begins(&mut self) -> bool {
        let begins = self.left_out == 0;
        self.left_out = self.left_out.saturating_sub(1);
        begins
    }

    /// A look has found something that was not there before.
    pub(super) fn paid(&mut self) {
        self.pause /= 2;
    }

    /// A look has found nothing.
    pub(super) fn was_in_vain(&mut self) {
        self.pause = (2 * self.pause).clamp(PAUSE.0, PAUSE.1);
        self.left_out = self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks among so many sleeps, of which each pays, or none.
    fn looks(looks: &mut Looks, sleeps: u32, pays: bool) -> u32 {
        let mut begun = 0;
        for _ in 0..sleeps {
            if looks.begins() {
                begun += 1;
                match pays {
                    true => looks.paid(),
                    false => looks.was_in_vain(),
                }
            }
        }
        begun
    }

    /// K1.
    #[test]
    fn looks_in_vain_become_rare_until_they_pay_again() {
        let mut it = Looks::default();
        assert_eq!(looks(&mut it, 1000, true), 1000);
        let in_vain = looks(&mut it, 100_000, false);
        assert!((5..=30).contains(&in_vain), "{in_vain}");
        looks(&mut it, 2 * PAUSE.1, true);
        assert_eq!(looks(&mut it, 1000, true), 1000);
        // One in vain among many that pay costs few.
        it.was_in_vain();
        assert_eq!(looks(&mut it, 1000, true), 1000 - PAUSE.0);
    }
}

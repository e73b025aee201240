//! The membership thread, one of each member, watches the host, or hosts.
//!
//! It holds the membership only for the moments in which it acts; see `space::host_connection`.

use super::Role;
use super::host;
use super::watch::Control;
use crate::directory::Offers;
use crate::space::host_connection::{HostConnection, Shared, disconnect};
use crate::space::{LeaveError, Member};
use portolan_sys::process::spawn_quiet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

/// Bytes of stack for the membership thread: it drains queues and answers requests of the dead.
const STACK: usize = 512 << 10;

/// Starts the membership thread, in the role of host or of a member with a connection.
pub(super) fn start(
    host_connection: &HostConnection,
    member: &Arc<Member>,
    role: Role,
) -> io::Result<()> {
    host_connection.start(|shared| {
        let thread = MembershipThread {
            shared: Arc::clone(shared),
            member: Arc::downgrade(member),
            offers: member.part::<Offers>().clone(),
            role,
        };
        let handle = spawn_quiet("portolan", STACK, move || thread.run())?;
        let id = handle.thread().id();
        let depart = move |member: &Member| match handle.join() {
            Ok(mut thread) => thread.leave(member),
            // It has panicked outside its own guard: nothing of it is left to leave with.
            Err(_) => Ok(()),
        };
        Ok((id, Box::new(depart)))
    })
}

/// The thread's state, which the thread that stops it takes over.
pub(super) struct MembershipThread {
    pub(super) shared: Arc<Shared>,
    member: Weak<Member>,
    /// The offers of this process.
    pub(super) offers: Offers,
    pub(super) role: Role,
}

/// Why the membership thread stops.
pub(super) enum Stop {
    /// It was told to, or the membership is gone.
    Told,
    /// Our descriptors are gone: we cannot host, nor be told of anything.
    Disconnected,
}

impl MembershipThread {
    fn run(mut self) -> Self {
        loop {
            // A panic in here is a mistake of ours. The others must not wait for a host
            // that lives and does nothing.
            let done = catch_unwind(AssertUnwindSafe(|| match &self.role {
                Role::Member(_) => self.watch(),
                Role::Host(_) => self.host(),
            }));
            match done {
                Ok(Ok(())) => {}
                Ok(Err(Stop::Told)) => return self,
                Ok(Err(Stop::Disconnected)) | Err(_) => {
                    self.offers.end();
                    self.attend(|thread, member| {
                        disconnect(member);
                        thread.stop_copy_brokers();
                        host::resign(member);
                    });
                    // Closes what connections there are, after the role is vacant.
                    self.role = Role::Member(Control::default());
                    return self;
                }
            }
        }
    }

    /// Runs `act` on the membership; `None` if the membership is gone, or ended meanwhile.
    pub(super) fn attend<R>(&mut self, act: impl FnOnce(&mut Self, &Member) -> R) -> Option<R> {
        let shared = Arc::clone(&self.shared);
        let _turn = shared.turn();
        let member = self.member.upgrade()?;
        let result = act(self, &member);
        let Some(member) = Arc::into_inner(member) else {
            return Some(result);
        };
        // Every handle was dropped meanwhile, so this thread must leave.
        let outcome = self.leave(&member);
        shared.left(outcome);
        drop(member);
        None
    }

    /// Leaves in good order.
    fn leave(&mut self, member: &Member) -> Result<(), LeaveError> {
        let left = match self.role {
            Role::Member(_) => self.leave_as_member(member),
            Role::Host(_) => {
                self.leave_as_host(member);
                Ok(())
            }
        };
        let (domain, space) = (member.domain.as_str(), member.space);
        match &left {
            Ok(()) => tracing::info!(domain, space, "this process has left the domain"),
            Err(error) => {
                tracing::warn!(domain, space, %error, "this process has left the domain");
            }
        }
        left
    }
}

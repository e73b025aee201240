//! A port is bound under the name of one that is gone, or will be.
//!
//! A process that was killed has its names until the host has reclaimed what it held, some
//! milliseconds later, and the process that is started in its place comes sooner.

use crate::port::{look_for_port, name_changes};
use crate::{Access, BindError, Deadline, Domain, PortOptions, ReceiveRight};
use portolan_sys::futex;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a name is waited for that another space is about to bind, or to give up.
const BINDING: Duration = Duration::from_millis(10);

/// What to wait for, where a name is taken.
enum Taken {
    /// A notice here: the port that has the name has died.
    Port(Box<ReceiveRight>),
    /// Another value of the count of names than this one.
    Binding(u32),
}

impl Domain {
    /// As [`Domain::bind`], waiting while another port has the name: for a process that takes the place
    /// of one that was killed just now.
    ///
    /// # Errors
    ///
    /// [`BindError`]; [`BindError::NameTaken`] once the deadline has passed.
    ///
    /// ```
    /// use portolan::{BindError, Deadline, Domain, PortOptions};
    /// use std::time::Duration;
    /// let domain = Domain::private()?;
    /// let first = domain.bind(PortOptions::named("frames"))?;
    /// let soon = Deadline::after(Duration::from_millis(5));
    /// let refused = domain.bind_when_free(PortOptions::named("frames"), soon);
    /// assert!(matches!(refused, Err(BindError::NameTaken { .. })));
    ///
    /// let other = domain.clone();
    /// let second = std::thread::spawn(move || {
    ///     other.bind_when_free(PortOptions::named("frames"), Deadline::NEVER)
    /// });
    /// drop(first); // Or its process is killed.
    /// assert!(second.join().unwrap().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bind_when_free(
        &self,
        options: PortOptions,
        deadline: impl Into<Deadline>,
    ) -> Result<ReceiveRight, BindError> {
        let deadline = deadline.into();
        loop {
            // Before the attempt: when the deadline has passed there is one more.
            let last = deadline.has_passed();
            match self.bind_or_wait(&options)? {
                Ok(port) => return Ok(port),
                Err((_, why)) if last => return Err(why),
                Err((Taken::Port(mut notices), _)) => {
                    // Also where it ends in an error: the next attempt says why.
                    let _ = notices.receive(Access::Later, deadline);
                }
                Err((Taken::Binding(seen), _)) => {
                    let until = deadline.min(BINDING.into());
                    let _ = futex::wait(name_changes(self.member()), seen, until.instant());
                }
            }
        }
    }

    /// As [`Self::bind_when_free`], without blocking the thread. A future that is dropped has bound
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`BindError`]. For a deadline, put the future into `tokio::time::timeout`.
    ///
    /// # Panics
    ///
    /// As [`ReceiveRight::receive_async`].
    ///
    /// ```
    /// use portolan::{Domain, PortOptions};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Domain::private()?;
    /// let first = domain.bind(PortOptions::named("frames"))?;
    /// tokio::spawn(async move { drop(first) });
    /// let second = domain.bind_when_free_async(PortOptions::named("frames")).await?;
    /// # drop(second);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn bind_when_free_async(
        &self,
        options: PortOptions,
    ) -> Result<ReceiveRight, BindError> {
        let mut bell = None;
        loop {
            ::tokio::task::coop::consume_budget().await;
            match self.bind_or_wait(&options)? {
                Ok(port) => return Ok(port),
                Err((Taken::Port(mut notices), _)) => {
                    let _ = notices.receive_async(Access::Later).await;
                }
                Err((Taken::Binding(seen), why)) => {
                    let until = std::time::Instant::now().checked_add(BINDING);
                    let Ok(bell) = crate::wait::Bell::of(&mut bell) else {
                        return Err(why);
                    };
                    let changes = name_changes(self.member());
                    if bell.arm_until(changes, seen, until).is_err() || bell.fired().await.is_err()
                    {
                        return Err(why);
                    }
                }
            }
        }
    }

    /// Binds the port; or what to wait for, and why it was not bound.
    fn bind_or_wait(
        &self,
        options: &PortOptions,
    ) -> Result<Result<ReceiveRight, (Taken, BindError)>, BindError> {
        // Acquire: a name that is shown after this changes the count.
        let seen = match self.member().present() {
            Ok(()) => name_changes(self.member()).load(Ordering::Acquire),
            Err(why) => return Err(why.into()),
        };
        let why = match self.bind(options.clone()) {
            Ok(port) => return Ok(Ok(port)),
            Err(why @ BindError::NameTaken { .. }) => why,
            Err(other) => return Err(other),
        };
        let BindError::NameTaken { name, .. } = &why else {
            return Err(why);
        };
        let Some(right) = look_for_port(self.member(), name) else {
            return Ok(Err((Taken::Binding(seen), why)));
        };
        // A port's name is free before its watchers are told of its death; and a port that has died
        // since is told of at once.
        let notices = self.bind(PortOptions::unnamed().queue(1))?;
        right.watch(&notices, 0)?;
        Ok(Err((Taken::Port(Box::new(notices)), why)))
    }
}

//! A task awaits a wait set under tokio.

use super::{Ready, WaitSet, WaitSetError};
use crate::wait::{Bell, NoDescriptor};
use ::tokio::task::coop::consume_budget;

impl WaitSet {
    /// As [`WaitSet::wait`], without blocking the thread. A future that is dropped loses
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`WaitSetError`].
    ///
    /// # Panics
    ///
    /// As [`ReceiveRight::receive_async`](crate::ReceiveRight::receive_async).
    ///
    /// ```
    /// use portolan::{Access, Domain, Message, PortOptions, WaitSet};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Domain::private()?;
    /// let mut set = WaitSet::new(&domain)?;
    /// let port = domain.bind(PortOptions::unnamed())?;
    /// let right = port.make_send();
    /// let token = set.add(port)?;
    /// right.send_async(Message::new(b"hello")?).await?;
    /// assert_eq!(set.wait_async().await?.next(), Some(token.any()));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait_async(&mut self) -> Result<Ready, WaitSetError> {
        loop {
            consume_budget().await;
            self.present()?;
            match self.round() {
                Ok(ready) => return Ok(self.named(ready)),
                Err(value) => {
                    // If this future is dropped the set counts as asleep until its next wait:
                    // that costs its senders a system call, and nothing else.
                    let (bell, doorbell) = self.bell_and_word();
                    let bell = Bell::of(bell).map_err(NoDescriptor::from)?;
                    bell.arm(doorbell, value).map_err(NoDescriptor::from)?;
                    bell.fired().await.map_err(NoDescriptor::from)?;
                }
            }
        }
    }
}

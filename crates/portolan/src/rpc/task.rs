//! Runs `async` methods, as tasks of a runtime, or in a thread that waits for them.

use super::connection::Connection;
use super::method::NotDispatched;
use super::parcel::{self, Parcels};
use super::serve::Serves;
use super::work::{Context, answer_of};
use crate::schema::Schema;
use crate::schema::Unpack;
use crate::space::counters;
use crate::space::drain::Drain;
use crate::space::record::Begun;
use portolan_proto::Status;
use serde::Serialize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// What a runtime is handed to run: one call, until it is answered. It never panics.
///
/// See [`super::ServerOptions::tasks`].
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A method that runs: its result as bytes.
pub type MethodFuture = Pin<Box<dyn Future<Output = Result<Vec<u8>, NotDispatched>> + Send>>;

/// Hands tasks to a runtime.
pub(super) type Spawner = Arc<dyn Fn(Task) + Send + Sync>;

/// A call on its way to an `async` method. What `#[portolan::service]` makes takes it apart; a
/// service that is written by hand does so itself:
///
/// ```
/// use portolan::rpc::{self, Dispatch, Method, MethodFuture, NotDispatched, OwnedCall, Service};
/// use portolan::{Deadline, Domain};
/// use std::sync::Arc;
///
/// // For its client.
/// #[portolan::service]
/// trait Clock {
///     async fn after(&self, ticks: u64) -> u64;
/// }
/// # struct Never;
/// # impl Clock for Never { async fn after(&self, _: u64) -> u64 { 0 } }
///
/// struct ByHand;
///
/// impl Service for ByHand {
///     const NAME: &'static str = "Clock";
///     const METHODS: &'static [Method] = <ClockService<Never> as Service>::METHODS;
///
///     fn dispatch(&self, _: u32, _: &mut Dispatch<'_>) -> Result<(), NotDispatched> {
///         Err(NotDispatched::UnknownMethod)
///     }
///
///     fn dispatch_async(
///         self: Arc<Self>,
///         method: u32,
///         call: OwnedCall,
///     ) -> Result<MethodFuture, OwnedCall> {
///         if method != Self::METHODS[0].id() {
///             return Err(call);
///         }
///         Ok(Box::pin(async move {
///             let (ticks,): (u64,) = call.arguments()?;
///             call.returns(&(ticks + 1))
///         }))
///     }
/// }
///
/// let domain = Domain::private()?;
/// let options = rpc::ServerOptions::default().tasks(|task| {
///     std::thread::spawn(|| rpc::wait_for(task));
/// });
/// let _server = rpc::serve(&domain, "clock", ByHand, &options)?;
/// let client = ClockClient::connect(&domain, "clock", Deadline::NEVER)?;
/// assert_eq!(client.after(41), Ok(42));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OwnedCall {
    pub(super) arguments: Vec<u8>,
    pub(super) parcels: Option<Arc<Parcels>>,
}

impl OwnedCall {
    /// Its arguments.
    ///
    /// # Errors
    ///
    /// [`NotDispatched::Unreadable`].
    pub fn arguments<'a, T: Unpack<'a>>(&'a self) -> Result<T, NotDispatched> {
        parcel::read(&self.arguments, self.parcels.as_ref()).ok_or(NotDispatched::Unreadable)
    }

    /// Its result.
    ///
    /// # Errors
    ///
    /// [`NotDispatched::Unwritable`].
    pub fn returns<T: Schema + Serialize>(&self, result: &T) -> Result<Vec<u8>, NotDispatched> {
        let mut bytes = Vec::new();
        super::method::answer(result, &mut bytes, self.parcels.as_ref())?;
        Ok(bytes)
    }
}

/// A call as a task. When its client gives it up its method is dropped where it waits; a
/// one-way call is given up only by a server that ends.
pub(super) struct Running {
    pub(super) connection: Arc<Connection>,
    pub(super) number: u64,
    pub(super) context: Context,
    pub(super) service: Arc<dyn Serves>,
    /// If it is recorded.
    pub(super) begun: Option<Begun>,
    /// Gone once it has ended.
    pub(super) method: Option<MethodFuture>,
    // The last field: it outlives the handles in the others.
    pub(super) _drain: Arc<Drain>,
}

impl Future for Running {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let Some(method) = &mut this.method else {
            return Poll::Ready(());
        };
        let call = &this.context;
        let given_up = call.wake_if_given_up(context.waker());
        let mut result = Vec::new();
        let status = if given_up {
            Status::Dropped
        } else {
            let poll = || call.during(|| method.as_mut().poll(context));
            let polled = catch_unwind(AssertUnwindSafe(poll));
            let ended = match polled {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(Ok(bytes))) => {
                    result = bytes;
                    Ok(Ok(()))
                }
                Ok(Poll::Ready(Err(why))) => Ok(Err(why)),
                Err(panic) => Err(panic),
            };
            answer_of(ended, &mut result)
        };
        this.end(status, &mut result);
        Poll::Ready(())
    }
}

impl Running {
    fn end(&mut self, status: Status, result: &mut Vec<u8>) {
        let Some(method) = self.method.take() else {
            return;
        };
        // What a method does as it is dropped is its own affair, but must not end the task.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(method)));
        let (member, port) = self.service.at();
        if member.present().is_ok() {
            counters::answered(member);
            if let Some(begun) = self.begun.take() {
                let bytes = result.len() as u64;
                member.record(begun, self.connection.about(port, self.number, bytes));
            }
        }
        self.connection.answer(self.number, status, result);
    }
}

impl Drop for Running {
    /// A runtime that ends drops its tasks: the client hears of it.
    fn drop(&mut self) {
        self.end(Status::Dropped, &mut Vec::new());
    }
}

/// Runs an `async` method in this thread, until it ends or its client gives it up. It has no
/// reactor: what it awaits brings its own.
///
/// # Errors
///
/// [`NotDispatched::GivenUp`].
pub fn wait_for<F: Future>(method: F) -> Result<F::Output, NotDispatched> {
    struct Unpark {
        thread: Thread,
        /// What the method awaits may park this thread too, and use up what unparks it.
        woken: AtomicBool,
    }
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            // Release: pairs with the look before it parks.
            self.woken.store(true, Ordering::Release);
            self.thread.unpark();
        }
    }
    let unpark = Arc::new(Unpark {
        thread: thread::current(),
        woken: AtomicBool::new(false),
    });
    let waker = Waker::from(Arc::clone(&unpark));
    let call = Context::current();
    let mut method = pin!(method);
    loop {
        let given_up = call.as_ref().is_some_and(|c| c.wake_if_given_up(&waker));
        if given_up {
            return Err(NotDispatched::GivenUp);
        }
        let mut context = task::Context::from_waker(&waker);
        if let Poll::Ready(result) = method.as_mut().poll(&mut context) {
            return Ok(result);
        }
        while !unpark.woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

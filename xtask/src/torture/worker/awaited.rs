//! Awaits calls: several at once, some of which the worker gives up.

use super::super::board::Entry;
use super::Worker;
use super::calls::CountingClient;
use portolan::rpc::{self, Awaited, RpcError, Task};
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

/// Most calls that are awaited at once.
const BATCH: usize = 12;

/// A call that is awaited, and its number.
struct Call {
    number: u64,
    awaited: Option<Awaited<u64>>,
    ended: Option<Result<u64, RpcError>>,
}

/// Ends when all of them have ended, or were given up.
struct All(Vec<Call>);

impl Future for All {
    type Output = Vec<(u64, Result<u64, RpcError>)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        for call in &mut self.0 {
            if let Some(awaited) = &mut call.awaited
                && let Poll::Ready(ended) = pin!(awaited).poll(context)
            {
                call.awaited = None;
                call.ended = Some(ended);
            }
        }
        if self.0.iter().any(|call| call.awaited.is_some()) {
            return Poll::Pending;
        }
        let calls = std::mem::take(&mut self.0).into_iter();
        Poll::Ready(calls.filter_map(|c| Some((c.number, c.ended?))).collect())
    }
}

impl Worker {
    /// Whether the connection is of no use any more.
    pub(super) fn await_calls(&mut self, client: &CountingClient) -> bool {
        let at = self.at;
        let mut calls = Vec::new();
        for _ in 0..=self.random.below(BATCH) {
            let number = self.number();
            let awaited = match self.random.below(3) {
                0 => client.count_async(at, number),
                1 => client.hint_async(at, number),
                _ => client.muse_async(at, number, self.random.below(20)),
            };
            let (awaited, ended) = (Some(awaited), None);
            calls.push(Call {
                number,
                awaited,
                ended,
            });
        }
        let mut all = All(calls);
        // Made, and perhaps given up again.
        let mut nobody = Context::from_waker(Waker::noop());
        let ended = match pin!(&mut all).poll(&mut nobody) {
            Poll::Ready(ended) => ended,
            Poll::Pending => {
                for call in &mut all.0 {
                    if self.random.once_in(6) {
                        call.awaited = None;
                    }
                }
                rpc::wait_for(all).unwrap_or_default()
            }
        };
        let mut over = false;
        for (number, ended) in ended {
            let ended = ended.map(|n| n == !number);
            if ended == Ok(true) {
                let awaited = self.board.of(self.at, Entry::Awaited);
                awaited.fetch_add(1, Ordering::Relaxed);
            }
            over |= self.settle(number, ended);
        }
        over
    }
}

/// Gives up its turn so many times.
pub(super) struct Naps(pub(super) usize);

impl Future for Naps {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(left) = self.0.checked_sub(1) else {
            return Poll::Ready(());
        };
        self.0 = left;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// The least runtime there is: a thread for each task.
pub(super) fn spawn(task: Task) {
    let run = move || rpc::wait_for(task);
    // The task is dropped if there is no thread; its client hears of it.
    let _ = std::thread::Builder::new()
        .name("portolan-rpc-task".to_owned())
        .spawn(run);
}

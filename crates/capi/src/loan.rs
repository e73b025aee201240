//! A publisher, and the room for a sample that it has lent to C.
//!
//! In Rust a loan borrows its publisher. C has both by one handle, so the loan is kept beside the
//! publisher that it borrows, and the publisher is not used while it is there.

use portolan::channel::{Loan, PublishError, Publisher};
use std::ptr::NonNull;

/// A publisher of bytes, and its loan, if C has one.
pub(crate) struct Publishing {
    /// From a box. While there is a loan, nothing but that uses it.
    publisher: NonNull<Publisher<[u8]>>,
    loan: Option<Loan<'static, [u8]>>,
}

// SAFETY:
// - Both may be sent to another thread (asserted below), and the pointer is the box's owner.
unsafe impl Send for Publishing {}

const _: () = {
    const fn may_be_sent<T: Send>() {}
    may_be_sent::<Publisher<[u8]>>();
    may_be_sent::<Loan<'static, [u8]>>();
};

impl Publishing {
    pub(crate) fn new(publisher: Publisher<[u8]>) -> Self {
        Self {
            publisher: NonNull::from(Box::leak(Box::new(publisher))),
            loan: None,
        }
    }

    /// The publisher; a loan is given up.
    pub(crate) fn publisher(&mut self) -> &mut Publisher<[u8]> {
        self.loan = None;
        // SAFETY:
        // - Live: the box is dropped with `self` alone.
        // - Exclusive: there is no loan, and `self` is borrowed as long as what is returned.
        unsafe { self.publisher.as_mut() }
    }

    /// Room for a sample of so many bytes; an earlier one is given up.
    pub(crate) fn loan(&mut self, len: usize) -> Result<&mut [u8], PublishError> {
        self.loan = None;
        // SAFETY:
        // - Live: the box is dropped with `self` alone, after the loan.
        // - Exclusive: there is no other loan, and while this one is there nothing else uses the
        //   publisher.
        let publisher: &'static mut Publisher<[u8]> = unsafe { self.publisher.as_mut() };
        let loan = publisher.loan(len)?;
        Ok(self.loan.insert(loan))
    }

    /// Publishes the loan; nothing, if there is none.
    pub(crate) fn publish_loan(&mut self) -> Option<Result<u64, PublishError>> {
        Some(self.loan.take()?.publish())
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        self.loan = None;
        // SAFETY:
        // - From a box, and nothing uses it any more.
        drop(unsafe { Box::from_raw(self.publisher.as_ptr()) });
    }
}

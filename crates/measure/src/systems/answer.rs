//! Makes the bytes of calls to other libraries' services, and checks the answers.

use crate::case::{Case, Shape};
use crate::error::{MeasureError, Result};

/// A call's bytes and its answer: as many, or none.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    pub(super) bytes: Vec<u8>,
    /// Whether a server answers with the bytes that it was sent.
    pub(super) answered: bool,
}

impl Exchange {
    pub(super) fn new(case: &Case) -> Self {
        let count = usize::try_from(case.bytes).expect("64-bit only");
        Self {
            bytes: (0..=u8::MAX).cycle().take(count).collect(),
            answered: case.shape == Shape::Answered,
        }
    }

    /// What a server answers `bytes` with.
    #[inline(always)]
    pub(super) fn answer<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        if self.answered { bytes } else { &[] }
    }

    /// Every answer is looked at in full. That is cheap: rows have short ones, or none.
    #[inline(always)]
    pub(super) fn check(&self, system: &'static str, answer: &[u8]) -> Result<()> {
        if answer == self.answer(&self.bytes) {
            return Ok(());
        }
        Err(MeasureError::WrongAnswer {
            system,
            sent: self.bytes.len(),
            came: answer.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::System;

    #[test]
    fn other_bytes_are_no_answer() {
        let case = Case {
            shape: Shape::Answered,
            ..Case::new(System::Call, 1000)
        };
        let exchange = Exchange::new(&case);
        let mut answer = exchange.bytes.clone();
        exchange.check("it", &answer).unwrap();
        answer[999] ^= 1;
        let error = exchange.check("it", &answer).unwrap_err();
        assert!(error.to_string().contains("1000"), "{error}");
        exchange.check("it", &[]).unwrap_err();
        let unanswered = Exchange::new(&Case::new(System::Call, 1000));
        unanswered.check("it", &[]).unwrap();
        unanswered.check("it", &answer).unwrap_err();
    }
}

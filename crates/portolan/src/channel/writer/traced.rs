//! A writer records its writes while its space is traced.

use super::{WriteError, Writer};
use crate::Deadline;
use crate::space::record::{About, Begun};

impl Writer {
    /// Whether its messages are recorded. Not in a forked child.
    #[inline(always)]
    pub(super) fn is_traced(&self) -> bool {
        let to = &self.ring.segment().right().to;
        self.event.is_some_and(|event| to.traces(event))
    }

    #[cold]
    pub(super) fn write_traced(
        &mut self,
        parts: &[&[u8]],
        deadline: Deadline,
    ) -> Result<u64, WriteError> {
        let begun = self.event.map(Begun::now);
        let position = self.write_untraced(parts, deadline)?;
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.record(begun, position, bytes as u64);
        Ok(position)
    }

    #[cold]
    pub(super) fn record(&self, begun: Option<Begun>, position: u64, bytes: u64) {
        let to = &self.ring.segment().right().to;
        if let Some(begun) = begun {
            let about = About::message(to.port.index, position, bytes);
            to.member.record(begun, about);
        }
    }
}

//! Options say how memory is exported and imported.

use super::ExportError;
use crate::directory::Exporter;
use crate::{AccessToken, Permissions};
use portolan_abi::vmmc::Ranges;
pub use portolan_abi::vmmc::Reach;
use std::ops::Range;

/// How memory is exported: who may import it, and what they may do where.
///
/// # Examples
///
/// ```
/// use portolan::Permissions;
/// use portolan::vmmc::{ExportOptions, Reach};
/// let samples = ExportOptions::new(Reach::Read).permit(Permissions::nobody().users([1000]));
/// let mailbox = ExportOptions::new(Reach::Write).within(0..64).within(4096..8192);
/// ```
#[derive(Clone, Debug)]
pub struct ExportOptions {
    pub(super) reach: Reach,
    pub(super) ranges: Vec<Range<usize>>,
    pub(super) importers: usize,
    pub(super) permissions: Permissions,
}

impl ExportOptions {
    /// Processes of the same user may import it and do this, anywhere.
    pub fn new(reach: Reach) -> Self {
        Self {
            reach,
            ranges: Vec::new(),
            importers: 4096,
            permissions: Permissions::default(),
        }
    }

    /// Only in this range of bytes; called again, also in that one. Up to eight. A range binds
    /// importers that keep to the library: what the kernel keeps to is whole exports.
    pub fn within(mut self, range: Range<usize>) -> Self {
        self.ranges.push(range);
        self
    }

    /// These may import it, instead of the processes of the same user.
    pub fn permit(mut self, permissions: Permissions) -> Self {
        self.permissions = permissions;
        self
    }

    /// How many may have imported it at one time, those that are about to included; 4,096 by
    /// default.
    pub fn importers(mut self, most: usize) -> Self {
        self.importers = most;
        self
    }

    /// The ranges, as of an export of `len` bytes.
    pub(super) fn ranges(&self, len: usize) -> Result<Ranges, ExportError> {
        let ranges: Vec<_> = self
            .ranges
            .iter()
            .map(|r| (r.start as u64, r.len() as u64))
            .collect();
        Ranges::new(&ranges, len as u64).ok_or(ExportError::BadRanges { len })
    }
}

/// What an import shows and accepts.
///
/// # Examples
///
/// ```
/// use portolan::AccessToken;
/// use portolan::vmmc::{Exporter, ImportOptions};
/// let small = ImportOptions::default().at_most(1 << 20);
/// let left = ImportOptions::default().exporter(Exporter::named("left"));
/// let known = ImportOptions::default().token(AccessToken::random()?);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImportOptions {
    pub(super) exporter: Option<Exporter>,
    pub(super) token: Option<AccessToken>,
    pub(super) most: u64,
}

impl Default for ImportOptions {
    /// Of any exporter, no token, and up to 1 TiB.
    fn default() -> Self {
        Self {
            exporter: None,
            token: None,
            most: 1 << 40,
        }
    }
}

impl ImportOptions {
    /// Only what this exporter exports: two members may export under one name.
    pub fn exporter(mut self, exporter: Exporter) -> Self {
        self.exporter = Some(exporter);
        self
    }

    /// Shows this token.
    pub fn token(mut self, token: AccessToken) -> Self {
        self.token = Some(token);
        self
    }

    /// Takes no more than so many bytes of addresses: that is what an exporter can make its
    /// importer map. Memory is taken only where the import is read or written.
    pub fn at_most(mut self, bytes: u64) -> Self {
        self.most = bytes;
        self
    }
}

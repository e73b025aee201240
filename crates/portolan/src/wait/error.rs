//! Errors of waiting say why a wait has ended.

/// The system's: no descriptor to wait with, for an async call or a wait set. Most often the
/// process has too many of them open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no descriptor to wait with ({}): close some, or raise the process's limit", std::io::Error::from_raw_os_error(*.errno))]
pub struct NoDescriptor {
    /// The system's error number.
    pub errno: i32,
}

impl From<std::io::Error> for NoDescriptor {
    fn from(error: std::io::Error) -> Self {
        Self {
            errno: error.raw_os_error().unwrap_or(0),
        }
    }
}

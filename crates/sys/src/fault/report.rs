//! Writes to standard error from a signal handler.

/// Writes `parts` to standard error, one after the other. Async-signal-safe.
///
/// # Examples
///
/// ```
/// portolan_sys::fault::report(&[b"portolan: ", b"all is well\n"]);
/// ```
pub fn report(parts: &[&[u8]]) {
    let mut line = Line::new();
    for part in parts {
        line.text(part);
    }
    line.write();
}

/// Longest line, in bytes; the rest is cut off. A line lies on the signal stack, which
/// has only a few kilobytes.
const LINE: usize = 512;

/// A line of text, put together without allocation. Async-signal-safe.
///
/// # Examples
///
/// ```
/// use portolan_sys::fault::Line;
/// let mut line = Line::new();
/// line.text(b"extent ").decimal(7).text(b" at ").hex(0x7f00);
/// assert_eq!(line.as_bytes(), b"extent 7 at 0x7f00");
/// ```
#[derive(Clone, Debug)]
pub struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Line {
    /// An empty line.
    pub fn new() -> Self {
        Self {
            bytes: [0; LINE],
            len: 0,
        }
    }

    /// Adds bytes as they are.
    pub fn text(&mut self, text: &[u8]) -> &mut Self {
        for (to, from) in self.bytes.iter_mut().skip(self.len).zip(text) {
            *to = *from;
            self.len += 1;
        }
        self
    }

    /// Adds a number.
    pub fn decimal(&mut self, number: u64) -> &mut Self {
        self.digits(number, 10)
    }

    /// Adds a number in hexadecimal, with `0x`.
    pub fn hex(&mut self, number: u64) -> &mut Self {
        self.text(b"0x").digits(number, 16)
    }

    /// The line so far.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// Writes the line to standard error in one call; a failure cannot be reported.
    pub fn write(&self) {
        let bytes = self.as_bytes();
        // SAFETY:
        // - `bytes` has as many bytes as said.
        let written =
            unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
        let _ = written;
    }

    fn digits(&mut self, mut number: u64, base: u64) -> &mut Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // Room for 2^64 in decimal, the longer of the two.
        let mut digits = [0; 20];
        let mut first = digits.len();
        for digit in digits.iter_mut().rev() {
            *digit = DIGITS
                .get(usize::try_from(number % base).unwrap_or(0))
                .copied()
                .unwrap_or(b'?');
            first -= 1;
            number /= base;
            if number == 0 {
                break;
            }
        }
        self.text(digits.get(first..).unwrap_or(&[]))
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

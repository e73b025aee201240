//! Strings keep text in an arena.

use crate::growth::NoRoom;
use crate::handle::Arena;
use crate::list::List;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// A string in an arena. Maps and trees with such keys are asked with a `&str`.
///
/// ```
/// use portolan::structure::{Structure, Text};
/// let domain = portolan::Domain::private()?;
/// let mut name = Structure::<Text>::build(&domain, |arena| arena.text("porto"))?;
/// name.edit(|text, _| text.push_str("lan"))??;
/// assert_eq!(&**name.root()?, "portolan");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Text<'a> {
    /// UTF-8: only `&str` and `char` are ever appended, and it is cut between characters.
    bytes: List<'a, u8>,
}

impl<'a> Text<'a> {
    /// An empty text.
    pub fn new_in(arena: Arena<'a>) -> Self {
        Self {
            bytes: List::new_in(arena),
        }
    }

    /// The string.
    #[inline]
    pub fn as_str(&self) -> &str {
        // SAFETY:
        // - UTF-8: the field's invariant.
        unsafe { std::str::from_utf8_unchecked(&self.bytes) }
    }

    /// Appends a string.
    ///
    /// # Errors
    ///
    /// [`NoRoom`]; the text stays as it was.
    pub fn push_str(&mut self, more: &str) -> Result<(), NoRoom> {
        if self.bytes.capacity() == 0 {
            // Most texts never change.
            self.bytes.reserve_exact(more.len())?;
        }
        self.bytes.extend_from_slice(more.as_bytes())
    }

    /// Appends a character.
    ///
    /// # Errors
    ///
    /// [`NoRoom`]; the text stays as it was.
    pub fn push(&mut self, more: char) -> Result<(), NoRoom> {
        self.push_str(more.encode_utf8(&mut [0; 4]))
    }

    /// Takes the last character out.
    pub fn pop(&mut self) -> Option<char> {
        let last = self.chars().next_back()?;
        self.bytes.truncate(self.bytes.len() - last.len_utf8());
        Some(last)
    }

    /// Cuts it off at `len` bytes, or before the character that lies there.
    pub fn truncate(&mut self, len: usize) {
        let mut end = len.min(self.len());
        while !self.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes.truncate(end);
    }

    /// Makes it empty; its room stays.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Gives room that is not used back to the arena.
    pub fn shrink_to_fit(&mut self) {
        self.bytes.shrink_to_fit();
    }

    /// Takes the text out; an empty one of the same arena stays.
    pub fn take(&mut self) -> Self {
        Self {
            bytes: self.bytes.take(),
        }
    }
}

impl Deref for Text<'_> {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Text<'_> {
    #[inline]
    fn borrow(&self) -> &str {
        self
    }
}

impl AsRef<str> for Text<'_> {
    fn as_ref(&self) -> &str {
        self
    }
}

impl PartialEq for Text<'_> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text<'_> {}

impl PartialEq<str> for Text<'_> {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for Text<'_> {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl PartialOrd for Text<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(other)
    }
}

impl Hash for Text<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl std::fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl std::fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

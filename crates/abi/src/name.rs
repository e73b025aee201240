//! Says which names are allowed for ports, segments, topics, services and offers.

/// What every name keeps to, besides its length; for errors.
pub const RULE: &str = "without zero bytes and '@' (which stands between a name and its node)";

/// Whether `text` can be a name of at most `most` bytes.
///
/// ```
/// use portolan_abi::name::is_name;
/// assert!(is_name("frames/left", 63));
/// assert!(!is_name("frames@left", 63));
/// assert!(!is_name("", 63) && !is_name("long", 3) && !is_name("a\0b", 63));
/// ```
pub fn is_name(text: &str, most: usize) -> bool {
    (1..=most).contains(&text.len()) && !text.contains(['\0', '@'])
}

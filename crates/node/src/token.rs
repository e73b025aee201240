//! A join token: the one line that lets a newcomer in, once.
//!
//! ```text
//! hall.example:7411/0C4S-2M0V-...
//!   where to ask    version 1 | expiry 8 | secret 16 | id of the authority's key 16 | check 4
//!                   as Crockford's base 32, which has no letters that look like digits
//! ```
//!
//! A reader of the line can join in its place; so it is short-lived, and shown to its user alone.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use portolan_transport::Moment;

/// How long an invitation is good.
pub const GOOD_FOR: Duration = Duration::from_secs(600);

/// The version of a token's bytes.
const VERSION: u8 = 1;
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Bytes: version, expiry, secret, key, check.
const BYTES: usize = 1 + 8 + 16 + 16 + 4;
/// Bytes of the check, which finds what was mistyped.
const CHECK: usize = 4;
/// Letters of so many bytes.
const LETTERS: usize = (BYTES * 8).div_ceil(5);

/// What an invitation says.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Where to ask: a host and a port.
    pub address: String,
    /// Until when, by the inviter's clock.
    pub expires: Moment,
    /// Known to the inviter and to whom it was given.
    pub secret: [u8; 16],
    /// The id of the authority's key, so that a newcomer knows the cluster that it joins.
    pub authority: [u8; 16],
}

impl fmt::Debug for Token {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("address", &self.address)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// Why a line is no token. Its writer's fault, or of how it was copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It has no slash.
    #[error("a token is HOST:PORT/LETTERS, and this has no '/'")]
    NoAddress,
    /// What stands before the slash is no address.
    #[error("{address:?} is not HOST:PORT, with a port from 1 to 65535")]
    BadAddress {
        /// What stands there.
        address: String,
    },
    /// A letter that no token has.
    #[error(
        "{letter:?}, letter {place} of the token, is not one of 0-9 and A-Z without I, L, O, U"
    )]
    BadLetter {
        /// The letter.
        letter: char,
        /// Where it stands, from 1, hyphens not counted.
        place: usize,
    },
    /// Too short, or too long.
    #[error(
        "the token has {found} letters and should have {LETTERS}: a part of it is missing, or doubled"
    )]
    Length {
        /// How many there are.
        found: usize,
    },
    /// Letters were changed.
    #[error("the token was mistyped: its letters do not fit together")]
    Mistyped,
    /// It is of another version of Portolan.
    #[error("the token is of version {found}, and this is version {VERSION}")]
    Version {
        /// Its version.
        found: u8,
    },
    /// Its time is over.
    #[error("the token expired at {expired} and it is {now}")]
    Expired {
        /// Until when it was good.
        expired: Moment,
        /// What our clock says.
        now: Moment,
    },
}

fn check(bytes: &[u8]) -> [u8; CHECK] {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    let mut check = [0; CHECK];
    check.copy_from_slice(&hash.as_ref()[..CHECK]);
    check
}

/// Whether a text is a host with a port.
pub(crate) fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let is_host = match host.strip_prefix('[') {
        Some(rest) => rest
            .strip_suffix(']')
            .is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok()),
        None => {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            (1..=253).contains(&host.len()) && host.chars().all(allowed)
        }
    };
    let digits = port.chars().all(|c| c.is_ascii_digit());
    is_host && digits && port.parse::<u16>().is_ok_and(|port| port > 0)
}

impl Token {
    /// Whether it is still good.
    ///
    /// # Errors
    ///
    /// [`TokenError::Expired`].
    pub fn check_time(&self, now: Moment) -> Result<(), TokenError> {
        if now > self.expires {
            return Err(TokenError::Expired {
                expired: self.expires,
                now,
            });
        }
        Ok(())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![VERSION];
        bytes.extend(self.expires.seconds.to_be_bytes());
        bytes.extend(self.secret);
        bytes.extend(self.authority);
        bytes.extend(check(&bytes));
        write!(f, "{}/", self.address)?;
        let bit = |at: usize| {
            let byte = bytes.get(at / 8).copied().unwrap_or_default();
            usize::from(byte >> (7 - at % 8) & 1)
        };
        for letter in 0..LETTERS {
            if letter > 0 && letter % 4 == 0 {
                write!(f, "-")?;
            }
            let value = (0..5).fold(0, |value, at| value << 1 | bit(letter * 5 + at));
            write!(f, "{}", char::from(ALPHABET[value]))?;
        }
        Ok(())
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(line: &str) -> Result<Self, TokenError> {
        let (address, letters) = line.trim().rsplit_once('/').ok_or(TokenError::NoAddress)?;
        if !is_address(address) {
            return Err(TokenError::BadAddress {
                address: address.chars().take(80).collect(),
            });
        }
        let bytes = bytes_of(letters)?;
        let (said, found) = bytes.split_at(BYTES - CHECK);
        if check(said) != found {
            return Err(TokenError::Mistyped);
        }
        if said[0] != VERSION {
            return Err(TokenError::Version { found: said[0] });
        }
        let mut expires = [0; 8];
        expires.copy_from_slice(&said[1..9]);
        let (mut secret, mut authority) = ([0; 16], [0; 16]);
        secret.copy_from_slice(&said[9..25]);
        authority.copy_from_slice(&said[25..41]);
        Ok(Self {
            address: address.to_owned(),
            expires: Moment {
                seconds: u64::from_be_bytes(expires),
            },
            secret,
            authority,
        })
    }
}

/// The bytes that letters stand for.
fn bytes_of(letters: &str) -> Result<[u8; BYTES], TokenError> {
    let mut bytes = [0_u8; BYTES];
    let mut found = 0;
    for letter in letters.chars().filter(|letter| *letter != '-') {
        let value = value_of(letter).ok_or(TokenError::BadLetter {
            letter,
            place: found + 1,
        })?;
        for at in 0..5 {
            let place = found * 5 + at;
            if value >> (4 - at) & 1 == 1
                && let Some(byte) = bytes.get_mut(place / 8)
            {
                *byte |= 1 << (7 - place % 8);
            }
        }
        found += 1;
    }
    match found {
        LETTERS => Ok(bytes),
        _ => Err(TokenError::Length { found }),
    }
}

/// What a letter stands for; those that look like digits are read as these.
fn value_of(letter: char) -> Option<usize> {
    let letter = match letter.to_ascii_uppercase() {
        'O' => '0',
        'I' | 'L' => '1',
        other => other,
    };
    let letter = u8::try_from(letter).ok()?;
    ALPHABET.iter().position(|known| *known == letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token {
            address: "hall.example:7411".to_owned(),
            expires: Moment {
                seconds: 1_800_000_600,
            },
            secret: *b"0123456789abcdef",
            authority: [0xf0; 16],
        }
    }

    #[test]
    fn a_token_is_one_line_that_reads_back_however_it_was_copied() {
        let line = token().to_string();
        assert_eq!(line.lines().count(), 1);
        assert_eq!(line.parse(), Ok(token()));
        assert_eq!(format!(" {}\n", line.to_lowercase()).parse(), Ok(token()));
        assert_eq!(line.replace('0', "o").replace('-', "").parse(), Ok(token()));
        let mut v6 = token();
        v6.address = "[2001:db8::1]:7411".to_owned();
        assert_eq!(v6.to_string().parse(), Ok(v6));
        assert!(!format!("{:?}", token()).contains("0123"));
    }

    #[test]
    fn each_changed_letter_is_found() {
        let line = token().to_string();
        let letters = line.find('/').unwrap() + 1;
        for at in letters..line.len() {
            let old = line.as_bytes()[at];
            if old == b'-' {
                continue;
            }
            let new = if old == b'7' { 'Z' } else { '7' };
            let mut changed = line.clone();
            changed.replace_range(at..=at, &new.to_string());
            assert_eq!(
                changed.parse::<Token>(),
                Err(TokenError::Mistyped),
                "{changed}"
            );
        }
    }

    #[test]
    fn what_is_no_token_says_why() {
        let line = token().to_string();
        let short = &line[..line.len() - 1];
        let cases = [
            ("", TokenError::NoAddress),
            (short, TokenError::Length { found: LETTERS - 1 }),
            (
                "hall:1/U",
                TokenError::BadLetter {
                    letter: 'U',
                    place: 1,
                },
            ),
            (
                "hall:1/\u{e9}",
                TokenError::BadLetter {
                    letter: '\u{e9}',
                    place: 1,
                },
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<Token>(), Err(expected), "{text}");
        }
        for address in [
            "hall",
            "hall:0",
            "hall:70000",
            "hall:+1",
            ":1",
            "[::1:1",
            "a b:1",
            "::1:1/2",
        ] {
            let refused = line.replace("hall.example:7411", address).parse::<Token>();
            assert!(
                matches!(refused, Err(TokenError::BadAddress { .. })),
                "{address}"
            );
        }
    }

    #[test]
    fn a_token_is_good_until_its_time() {
        let at = |seconds| token().check_time(Moment { seconds });
        assert_eq!(at(1_800_000_600), Ok(()));
        assert!(matches!(at(1_800_000_601), Err(TokenError::Expired { .. })));
    }
}

//! The keys that leave a process alone again, found in what is typed.

use std::{mem, str::FromStr};

use bytes::{BufMut, Bytes, BytesMut};

/// Most keys in a sequence.
const MAX_KEYS: usize = 8;

/// A sequence of keys, such as `ctrl-p,ctrl-q`, and how much of it was typed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DetachKeys {
    keys: Vec<u8>,
    typed: usize,
}

/// What was typed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Typed {
    /// Keys for the process. A beginning of the sequence is kept back until it is clear what it is.
    Keys(Bytes),
    /// The sequence; these came before it.
    Detach(Bytes),
}

impl DetachKeys {
    /// Looks at what was typed.
    pub(crate) fn look(&mut self, typed: &[u8]) -> Typed {
        let mut passed = BytesMut::with_capacity(typed.len() + self.typed);
        for &key in typed {
            if key == self.keys[self.typed] {
                self.typed += 1;
                if self.typed == self.keys.len() {
                    self.typed = 0;
                    return Typed::Detach(passed.freeze());
                }
                continue;
            }
            let kept = mem::take(&mut self.typed);
            passed.put_slice(&self.keys[..kept]);
            if key == self.keys[0] {
                self.typed = 1;
            } else {
                passed.put_u8(key);
            }
        }
        Typed::Keys(passed.freeze())
    }
}

impl FromStr for DetachKeys {
    type Err = DetachKeysError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let keys = text.split(',').map(key).collect::<Result<Vec<_>, _>>()?;
        if keys.len() > MAX_KEYS {
            return Err(DetachKeysError::TooMany);
        }
        Ok(Self { keys, typed: 0 })
    }
}

fn key(text: &str) -> Result<u8, DetachKeysError> {
    let unknown = || DetachKeysError::Unknown(text.to_owned());
    let only = |text: &str| match text.as_bytes() {
        [key] if key.is_ascii_graphic() => Some(key.to_ascii_lowercase()),
        _ => None,
    };
    match text.strip_prefix("ctrl-") {
        Some(rest) => match only(rest).ok_or_else(unknown)? {
            letter @ b'a'..=b'z' => Ok(letter - b'a' + 1),
            b'@' => Ok(0),
            sign @ b'['..=b'_' => Ok(sign - b'[' + 27),
            _ => Err(unknown()),
        },
        None => match text.as_bytes() {
            [key] if key.is_ascii_graphic() => Ok(*key),
            _ => Err(unknown()),
        },
    }
}

/// Why a text is no sequence of keys.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DetachKeysError {
    /// Caller: a key that there is no name for.
    #[error("`{0}` is no key: expected a character, or ctrl- and one of a-z @ [ \\ ] ^ _")]
    Unknown(String),
    /// Caller: nobody would type that.
    #[error("expected at most {MAX_KEYS} keys")]
    TooMany,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> DetachKeys {
        text.parse().unwrap()
    }

    fn passed(text: &'static [u8]) -> Typed {
        Typed::Keys(Bytes::from_static(text))
    }

    #[test]
    fn the_sequence_is_found_across_reads_and_what_came_before_it_is_passed_on() {
        let mut keys = keys("ctrl-p,ctrl-q");
        assert_eq!(keys.look(b"ab"), passed(b"ab"));
        assert_eq!(keys.look(b"c\x10"), passed(b"c"));
        let left = Typed::Detach(Bytes::new());
        assert_eq!(keys.look(b"\x11rest"), left);
    }

    #[test]
    fn a_beginning_that_goes_on_otherwise_is_passed_on_whole() {
        let mut keys = keys("ctrl-p,ctrl-q");
        assert_eq!(keys.look(b"\x10"), passed(b""));
        assert_eq!(keys.look(b"x"), passed(b"\x10x"));
        assert_eq!(keys.look(b"\x10\x10"), passed(b"\x10"));
        assert_eq!(keys.look(b"\x11"), Typed::Detach(Bytes::new()));
    }

    #[test]
    fn keys_have_names() {
        assert_eq!(
            keys("ctrl-a,ctrl-@,ctrl-[,ctrl-_,d").keys,
            b"\x01\0\x1b\x1fd"
        );
        assert_eq!(keys("ctrl-A").keys, b"\x01");
        for wrong in ["", "ctrl-", "ctrl-1", "ab", "a,", "é"] {
            assert!(wrong.parse::<DetachKeys>().is_err(), "{wrong}");
        }
        let many = ["a"; 9].join(",");
        assert_eq!(many.parse::<DetachKeys>(), Err(DetachKeysError::TooMany));
    }
}

//! Ids of the records in a state directory.

use std::{fmt, io, str::FromStr};

use rustix::rand::{GetRandomFlags, getrandom};

/// Id of the journal of one process, unique in its state directory. Ids are ordered by creation:
/// they begin with a counter of 48 bits, so that no clock is involved, and end with 80 random bits.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RecordId([u8; 16]);

/// Bytes of the counter.
const COUNTER_BYTES: usize = 6;

impl RecordId {
    /// Creates the id of the record that is created after `count` others.
    pub(crate) fn generate(count: u64) -> io::Result<Self> {
        let mut bytes = [0; 16];
        let random = getrandom(&mut bytes[COUNTER_BYTES..], GetRandomFlags::empty())?;
        if random != 16 - COUNTER_BYTES {
            return Err(io::Error::other("short read of random bytes"));
        }
        bytes[..COUNTER_BYTES].copy_from_slice(&count.to_be_bytes()[8 - COUNTER_BYTES..]);
        Ok(Self(bytes))
    }

    /// Creates an id from its bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the counter.
    pub(crate) fn count(self) -> u64 {
        let bytes = self.0[..COUNTER_BYTES].iter();
        bytes.fold(0, |count, byte| count << 8 | u64::from(*byte))
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordId({self})")
    }
}

/// Caller: the text is not 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid record id: use 32 lower-case hexadecimal digits")]
pub struct InvalidRecordId;

impl FromStr for RecordId {
    type Err = InvalidRecordId;

    fn from_str(text: &str) -> Result<Self, InvalidRecordId> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(is_digit) {
            return Err(InvalidRecordId);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| InvalidRecordId)?;
        Ok(Self(number.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_id_round_trips_through_text() {
        let id = RecordId::generate(0x0102_0304_0506).unwrap();
        let text = id.to_string();
        assert!(text.starts_with("010203040506"), "{text}");
        assert_eq!(text.parse(), Ok(id));
        assert_eq!(id.count(), 0x0102_0304_0506);
    }

    #[test]
    fn only_lower_case_hexadecimal_digits_are_a_record_id() {
        for text in ["", "0", &"0".repeat(33), &"A".repeat(32), &"+".repeat(32)] {
            assert_eq!(text.parse::<RecordId>(), Err(InvalidRecordId), "{text}");
        }
    }

    #[test]
    fn record_ids_are_ordered_by_creation() {
        let first = RecordId::generate(255).unwrap();
        let second = RecordId::generate(256).unwrap();
        assert!(first < second);
        assert_ne!(first, RecordId::generate(255).unwrap());
    }
}

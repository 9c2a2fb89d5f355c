//! Records: AES-256-GCM under the keys of a handshake, one key per direction.
//!
//! Invariant: a sealer uses each number once, and the number is the nonce. Records are sealed and
//! opened in place where the buffer allows it. Not here: which record is whose turn ([`crate::stream`]).

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bytes::{Bytes, BytesMut};
use clatter::bytearray::ByteArray;

use crate::limits;

/// Both directions, after a handshake.
#[derive(Debug)]
pub struct Channel {
    /// Seals what this endpoint sends.
    pub sealer: Sealer,
    /// Opens what the peer sends.
    pub opener: Opener,
}

#[cfg(any(test, fuzzing))]
impl Channel {
    /// Makes both ends of a channel without a handshake.
    pub(crate) fn pair() -> (Self, Self) {
        let (up, down) = ([1; 32], [2; 32]);
        let end = |seal: &[u8; 32], open: &[u8; 32]| Self {
            sealer: Sealer::new(seal),
            opener: Opener::new(open),
        };
        (end(&up, &down), end(&down, &up))
    }
}

/// Seals records, each under the next number.
pub struct Sealer {
    key: LessSafeKey,
    next: u32,
}

impl Sealer {
    pub(crate) fn new(key: &impl ByteArray) -> Self {
        Self {
            key: less_safe(key),
            next: 0,
        }
    }

    /// Goes on at a number, as after as many records.
    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, next: u32) {
        self.next = next;
    }

    /// Returns the number of the next record, also how many were sealed. Above
    /// [`limits::LAST_SEQ`] there is no next one.
    pub fn next_seq(&self) -> u32 {
        self.next
    }

    /// Seals the bytes of `buffer` from `start` on, in place, and appends the tag.
    pub fn seal(&mut self, buffer: &mut Vec<u8>, start: usize) -> Result<(), SealError> {
        if self.next > limits::LAST_SEQ {
            return Err(SealError::Exhausted);
        }
        let plaintext = buffer.get_mut(start..).unwrap_or_default();
        if plaintext.len() > limits::RECORD_BYTES {
            return Err(SealError::TooLong(plaintext.len()));
        }
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(self.next), Aad::empty(), plaintext)
            .map_err(|_| SealError::Exhausted)?;
        buffer.extend_from_slice(tag.as_ref());
        self.next += 1;
        Ok(())
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

/// Opens the peer's records. The caller puts them in order and opens each once.
pub struct Opener {
    key: LessSafeKey,
}

impl Opener {
    pub(crate) fn new(key: &impl ByteArray) -> Self {
        Self {
            key: less_safe(key),
        }
    }

    /// Opens a record, in place if nobody else holds its bytes.
    pub fn open(&self, seq: u32, record: Bytes) -> Result<Bytes, OpenError> {
        let Some(len) = record.len().checked_sub(limits::TAG_BYTES) else {
            return Err(OpenError::TooShort(record.len()));
        };
        if len > limits::RECORD_BYTES {
            return Err(OpenError::TooLong(len));
        }
        let plaintext = match record.try_into_mut() {
            Ok(mut record) => {
                self.key
                    .open_in_place(nonce(seq), Aad::empty(), &mut record)
                    .map_err(|_| OpenError::Forged(seq))?;
                record.truncate(len);
                record
            }
            Err(shared) => {
                let (ciphertext, tag) = shared.split_at(len);
                let mut plaintext = BytesMut::zeroed(len);
                self.key
                    .open_separate_gather(nonce(seq), Aad::empty(), ciphertext, tag, &mut plaintext)
                    .map_err(|_| OpenError::Forged(seq))?;
                plaintext
            }
        };
        Ok(plaintext.freeze())
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").finish_non_exhaustive()
    }
}

/// Why nothing was sealed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// Caller: all numbers are used, and none is used twice. The stream has to end.
    #[error("record numbers are used up")]
    Exhausted,
    /// Caller: no record holds as much.
    #[error("record of {0} bytes is too long")]
    TooLong(usize),
}

/// Why a record was not opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Peer: shorter than its tag.
    #[error("record of {0} bytes is shorter than its tag")]
    TooShort(usize),
    /// Peer: longer than any record.
    #[error("record holds {0} bytes")]
    TooLong(usize),
    /// Peer, or the relay: not what was sealed under this number.
    #[error("record {0} is not authentic")]
    Forged(u32),
}

/// Four zero bytes, then the number as 64 bits, big-endian.
fn nonce(seq: u32) -> Nonce {
    let mut bytes = [0; 12];
    bytes[8..].copy_from_slice(&seq.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[expect(
    clippy::expect_used,
    reason = "the cipher of the handshake has keys of 32 bytes"
)]
fn less_safe(key: &impl ByteArray) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, key.as_slice()).expect("an AES-256 key is 32 bytes");
    LessSafeKey::new(key)
}

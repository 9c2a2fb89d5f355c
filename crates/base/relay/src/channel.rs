//! Encrypted channel: records sealed with AES-256-GCM, one key per direction.
//!
//! Invariant: a sealer uses each record number once, and the number is the nonce. Records are
//! sealed and opened in place where the buffer allows it. Record ordering is in [`crate::stream`].

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bytes::{Bytes, BytesMut};
use clatter::bytearray::ByteArray;

use crate::limits;

/// Both directions of a channel, after a handshake.
#[derive(Debug)]
pub struct NoiseChannel {
    /// Seals outgoing records.
    pub sealer: RecordSealer,
    /// Opens incoming records.
    pub opener: RecordOpener,
}

#[cfg(any(test, fuzzing))]
impl NoiseChannel {
    /// Creates both ends of a channel without a handshake.
    pub(crate) fn pair() -> (Self, Self) {
        let (up, down) = ([1; 32], [2; 32]);
        let end = |seal: &[u8; 32], open: &[u8; 32]| Self {
            sealer: RecordSealer::new(seal),
            opener: RecordOpener::new(open),
        };
        (end(&up, &down), end(&down, &up))
    }
}

/// Seals records with consecutive numbers.
pub struct RecordSealer {
    key: LessSafeKey,
    next: u32,
}

impl RecordSealer {
    pub(crate) fn new(key: &impl ByteArray) -> Self {
        Self {
            key: aead_key(key),
            next: 0,
        }
    }

    /// Sets the number of the next record.
    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, next: u32) {
        self.next = next;
    }

    /// Returns the number of the next record, which is also the number of records sealed so far.
    /// Above [`limits::LAST_SEQ`] no record can be sealed.
    pub fn next_seq(&self) -> u32 {
        self.next
    }

    /// Seals `buffer[start..]` in place and appends the tag.
    pub fn seal(&mut self, buffer: &mut Vec<u8>, start: usize) -> Result<(), RecordSealError> {
        if self.next > limits::LAST_SEQ {
            return Err(RecordSealError::Exhausted);
        }
        let plaintext = buffer.get_mut(start..).unwrap_or_default();
        if plaintext.len() > limits::RECORD_BYTES {
            return Err(RecordSealError::TooLong(plaintext.len()));
        }
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(self.next), Aad::empty(), plaintext)
            .map_err(|_| RecordSealError::Exhausted)?;
        buffer.extend_from_slice(tag.as_ref());
        self.next += 1;
        Ok(())
    }
}

impl fmt::Debug for RecordSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordSealer")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

/// Opens the peer's records. The caller orders them and opens each one once.
pub struct RecordOpener {
    key: LessSafeKey,
}

impl RecordOpener {
    pub(crate) fn new(key: &impl ByteArray) -> Self {
        Self { key: aead_key(key) }
    }

    /// Opens a record, in place if its buffer is not shared.
    pub fn open(&self, seq: u32, record: Bytes) -> Result<Bytes, RecordOpenError> {
        let Some(len) = record.len().checked_sub(limits::TAG_BYTES) else {
            return Err(RecordOpenError::TooShort(record.len()));
        };
        if len > limits::RECORD_BYTES {
            return Err(RecordOpenError::TooLong(len));
        }
        let plaintext = match record.try_into_mut() {
            Ok(mut record) => {
                self.key
                    .open_in_place(nonce(seq), Aad::empty(), &mut record)
                    .map_err(|_| RecordOpenError::Forged(seq))?;
                record.truncate(len);
                record
            }
            Err(shared) => {
                let (ciphertext, tag) = shared.split_at(len);
                let mut plaintext = BytesMut::zeroed(len);
                self.key
                    .open_separate_gather(nonce(seq), Aad::empty(), ciphertext, tag, &mut plaintext)
                    .map_err(|_| RecordOpenError::Forged(seq))?;
                plaintext
            }
        };
        Ok(plaintext.freeze())
    }
}

impl fmt::Debug for RecordOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordOpener").finish_non_exhaustive()
    }
}

/// Why a record was not sealed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordSealError {
    /// Caller: all record numbers are used. The stream has to end.
    #[error("record numbers are exhausted")]
    Exhausted,
    /// Caller: the plaintext exceeds [`limits::RECORD_BYTES`].
    #[error("record of {0} bytes is too long")]
    TooLong(usize),
}

/// Why a record was not opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordOpenError {
    /// Peer: the record is shorter than its tag.
    #[error("record of {0} bytes is shorter than its tag")]
    TooShort(usize),
    /// Peer: the plaintext exceeds [`limits::RECORD_BYTES`].
    #[error("record of {0} bytes is too long")]
    TooLong(usize),
    /// Peer or relay: authentication failed.
    #[error("record {0} is not authentic")]
    Forged(u32),
}

/// Returns the nonce: four zero bytes, then the record number as a 64-bit big-endian integer.
fn nonce(seq: u32) -> Nonce {
    let mut bytes = [0; 12];
    bytes[8..].copy_from_slice(&seq.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[expect(
    clippy::expect_used,
    reason = "the handshake's cipher has 32-byte keys"
)]
fn aead_key(key: &impl ByteArray) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, key.as_slice()).expect("AES-256 key has 32 bytes");
    LessSafeKey::new(key)
}

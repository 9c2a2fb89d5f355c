//! Messages out of records: any cut is taken, as from stock senders.

use bytes::{Buf, Bytes, BytesMut};

use crate::{
    limits::{MESSAGE_BYTES, PREFIX_BYTES},
    stream::StreamError,
};

/// The part of a message that has come so far.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    prefix: [u8; PREFIX_BYTES],
    prefix_len: usize,
    message: Option<Partial>,
}

#[derive(Debug)]
struct Partial {
    bytes: BytesMut,
    missing: usize,
}

impl Assembly {
    /// Takes a record in; `deliver` gets each message that it completes. A message that lies in one
    /// record is a slice of it.
    pub(super) fn feed(
        &mut self,
        mut record: Bytes,
        mut deliver: impl FnMut(Bytes) -> Result<(), StreamError>,
    ) -> Result<(), StreamError> {
        while !record.is_empty() {
            if let Some(partial) = &mut self.message {
                let take = partial.missing.min(record.len());
                partial.bytes.extend_from_slice(&record[..take]);
                partial.missing -= take;
                record.advance(take);
                if partial.missing == 0
                    && let Some(partial) = self.message.take()
                {
                    deliver(partial.bytes.freeze())?;
                }
                continue;
            }
            let take = (PREFIX_BYTES - self.prefix_len).min(record.len());
            record.copy_to_slice(&mut self.prefix[self.prefix_len..self.prefix_len + take]);
            self.prefix_len += take;
            if self.prefix_len < PREFIX_BYTES {
                continue;
            }
            self.prefix_len = 0;
            let len = match usize::try_from(u32::from_be_bytes(self.prefix)) {
                Ok(0) => return Err(StreamError::EmptyMessage),
                Ok(len) if len <= MESSAGE_BYTES => len,
                Ok(len) => return Err(StreamError::LongMessage(len)),
                Err(_) => return Err(StreamError::LongMessage(usize::MAX)),
            };
            if record.len() >= len {
                deliver(record.split_to(len))?;
            } else {
                self.message = Some(Partial {
                    // A prefix alone does not take 64 MiB of memory.
                    bytes: BytesMut::with_capacity(len.min(AT_ONCE_BYTES)),
                    missing: len,
                });
            }
        }
        Ok(())
    }

    /// Tells whether the last record ended with a message.
    pub(super) fn is_between(&self) -> bool {
        self.message.is_none() && self.prefix_len == 0
    }
}

/// Memory that is taken for a message before more of it has come.
const AT_ONCE_BYTES: usize = 1 << 20;

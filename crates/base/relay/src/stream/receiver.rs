//! From records to messages: order, opening, assembly.

use bytes::Bytes;

use crate::{
    channel::Opener,
    frame::Data,
    limits::PLAIN_INBOX_MESSAGES,
    stream::{
        StreamError,
        assembly::Assembly,
        inbox::Inbox,
        reorder::{Order, Reorder},
    },
};

/// One direction of a stream, at its end.
#[derive(Debug)]
pub(super) struct Receiver {
    opener: Opener,
    reorder: Reorder,
    assembly: Assembly,
    inbox: Inbox,
    /// The next segment of a message that is being received, and how many it has.
    segment: Option<(u32, u32)>,
}

impl Receiver {
    pub(super) fn new(opener: Opener) -> Self {
        Self {
            opener,
            reorder: Reorder::default(),
            assembly: Assembly::default(),
            inbox: Inbox::default(),
            segment: None,
        }
    }

    /// Takes a record of a plain stream, and every record that waited for it.
    pub(super) fn handle_plain(&mut self, data: Data) -> Result<(), StreamError> {
        let (seq, next) = (data.seq, self.reorder.next());
        if (data.segment_index, data.segment_count) != (0, 1) {
            return Err(StreamError::Segments(seq));
        }
        match self.reorder.insert(data) {
            Order::Next(data) => self.deliver_plain(data)?,
            Order::Held | Order::Duplicate => return Ok(()),
            Order::TooFar => return Err(StreamError::OutOfWindow { seq, next }),
            Order::TooMuch => return Err(StreamError::ReorderFull { next }),
        }
        while let Some(data) = self.reorder.pop() {
            self.deliver_plain(data)?;
        }
        Ok(())
    }

    /// Sorts a record of a reliable stream in. The caller delivers those whose turn it is.
    pub(super) fn sort(&mut self, data: Data) -> Order {
        self.reorder.insert(data)
    }

    /// Tells whether a record waits whose turn it is.
    pub(super) fn has_held(&self) -> bool {
        self.reorder.has_next()
    }

    /// Returns a record that waited, and whose turn it is.
    pub(super) fn pop_held(&mut self) -> Option<Data> {
        self.reorder.pop()
    }

    /// Puts a record back that was popped and cannot be delivered yet.
    pub(super) fn put_back(&mut self, data: Data) {
        self.reorder.put_back(data);
    }

    /// Delivers the next record of a reliable stream: whole messages, or one segment of one.
    pub(super) fn deliver_segment(&mut self, data: Data) -> Result<(), StreamError> {
        let Data {
            seq,
            segment_index: index,
            segment_count: count,
            payload,
        } = data;
        let fits = match self.segment {
            None => index == 0,
            Some(expected) => expected == (index, count),
        };
        if !fits {
            return Err(StreamError::Segments(seq));
        }
        let before = self.inbox.len();
        self.deliver(seq, payload, usize::MAX)?;
        // The places are not sealed, the lengths are: they have to agree.
        let last = index + 1 == count;
        let whole = self.inbox.len() - before;
        let agrees = match (count, last) {
            (1, _) => self.assembly.is_between(),
            (_, true) => self.assembly.is_between() && whole == 1,
            (_, false) => !self.assembly.is_between() && whole == 0,
        };
        if !agrees {
            return Err(StreamError::Segments(seq));
        }
        self.segment = (!last).then_some((index + 1, count));
        Ok(())
    }

    pub(super) fn poll_message(&mut self) -> Option<Bytes> {
        self.inbox.pop()
    }

    pub(super) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Returns the number that is expected.
    pub(super) fn next(&self) -> u32 {
        self.reorder.next()
    }

    /// Returns which of the 32 records from `base` on have arrived.
    pub(super) fn arrived(&self, base: u32) -> u32 {
        self.reorder.arrived(base)
    }

    fn deliver_plain(&mut self, data: Data) -> Result<(), StreamError> {
        self.deliver(data.seq, data.payload, PLAIN_INBOX_MESSAGES)
    }

    fn deliver(&mut self, seq: u32, record: Bytes, messages: usize) -> Result<(), StreamError> {
        let plaintext = self.opener.open(seq, record)?;
        let inbox = &mut self.inbox;
        self.assembly.feed(plaintext, |message| {
            if inbox.len() >= messages {
                return Err(StreamError::InboxFull);
            }
            inbox.push(message);
            Ok(())
        })?;
        self.reorder.advance();
        Ok(())
    }
}

//! Messages between a server and the keeper: 32 bytes and up to 12 descriptors.
//!
//! Each request has exactly one answer with the same sequence number. The first exchange is
//! [`KeeperMessageKind::Hello`]. Its layout is the same in every version.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};

use super::MAX_SLOTS;

/// Version of the protocol.
pub(super) const PROTOCOL_VERSION: u32 = 1;
/// Size of a message: kind, sequence number, value, slots (32 bits each) and the record's id.
pub(super) const MESSAGE_BYTES: usize = 32;
/// Room for one descriptor more than any message has, to recognise one with too many.
const RECEIVED_FDS: usize = MAX_SLOTS + 1;

/// Kind of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(super) enum KeeperMessageKind {
    /// First request and its answer; the value is the protocol version.
    Hello = 1,
    /// Request: hold these descriptors in the slots of a record.
    Hold = 2,
    /// Request: close the descriptors in these slots.
    Release = 3,
    /// Request: close all descriptors of a record.
    Drop = 4,
    /// Request: send the first record, or if the value is 1 the one after this record.
    Next = 5,
    /// Request: start a durable spawner, from its executable and its request socket.
    StartSpawner = 6,
    /// Answer: the request was carried out.
    Ack = 16,
    /// Answer: the request failed; the value is an error number.
    Error = 17,
    /// Answer: a record with its descriptors.
    Record = 18,
    /// Answer: no further record.
    End = 19,
    /// Answer: the pid of a durable spawner, with a pidfd.
    Spawner = 20,
}

impl KeeperMessageKind {
    fn from_number(number: u32) -> Option<Self> {
        let kinds = [
            Self::Hello,
            Self::Hold,
            Self::Release,
            Self::Drop,
            Self::Next,
            Self::StartSpawner,
            Self::Ack,
            Self::Error,
            Self::Record,
            Self::End,
            Self::Spawner,
        ];
        kinds.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// A message without its descriptors.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct KeeperMessage {
    pub(super) kind: KeeperMessageKind,
    /// Chosen by the client; the answer repeats it.
    pub(super) sequence: u32,
    pub(super) value: u32,
    /// One bit for each slot. The descriptors are in the order of the bits.
    pub(super) slots: u32,
    pub(super) record: [u8; 16],
}

impl KeeperMessage {
    pub(super) fn new(kind: KeeperMessageKind) -> Self {
        Self {
            kind,
            sequence: 0,
            value: 0,
            slots: 0,
            record: [0; 16],
        }
    }

    pub(super) fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        let words = [self.kind as u32, self.sequence, self.value, self.slots];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[16..].copy_from_slice(&self.record);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, record) = bytes.split_first_chunk::<16>()?;
        let word = |index: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&words[index * 4..index * 4 + 4]);
            u32::from_le_bytes(word)
        };
        let slots = word(3);
        if slots >> MAX_SLOTS != 0 {
            return None;
        }
        Some(Self {
            kind: KeeperMessageKind::from_number(word(0))?,
            sequence: word(1),
            value: word(2),
            slots,
            record: record.try_into().ok()?,
        })
    }

    /// Returns how many descriptors belong to the message.
    fn descriptor_count(&self) -> usize {
        match self.kind {
            KeeperMessageKind::Hold | KeeperMessageKind::Record => self.slots.count_ones() as usize,
            KeeperMessageKind::StartSpawner => 2,
            KeeperMessageKind::Spawner => 1,
            KeeperMessageKind::Hello
            | KeeperMessageKind::Release
            | KeeperMessageKind::Drop
            | KeeperMessageKind::Next
            | KeeperMessageKind::Ack
            | KeeperMessageKind::Error
            | KeeperMessageKind::End => 0,
        }
    }

    /// Sends the message with its descriptors, without waiting.
    pub(super) fn send(
        &self,
        socket: &OwnedFd,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SLOTS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(Errno::TOOBIG);
        }
        let bytes = self.encode();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
                Err(Errno::INTR) => {}
                sent => return sent.map(drop),
            }
        }
    }
}

/// Result of receiving from a peer.
#[derive(Debug)]
pub(super) enum ReceivedMessage {
    /// A valid message with the descriptors that belong to it.
    Complete(KeeperMessage, Vec<OwnedFd>),
    /// A valid message. This process had no room for its descriptors.
    OutOfDescriptors(KeeperMessage),
    /// Not a message of this protocol.
    Malformed,
    /// The peer has closed its socket.
    Closed,
}

impl ReceivedMessage {
    /// Receives a message, without waiting.
    pub(super) fn receive(socket: &OwnedFd) -> Result<Self, Errno> {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RECEIVED_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = loop {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            match recvmsg(socket, &mut slices, &mut ancillary, flags) {
                Err(Errno::INTR) => {}
                received => break received?,
            }
        };
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = part {
                descriptors.extend(passed);
            }
        }
        if received.bytes == 0 {
            return Ok(Self::Closed);
        }
        if received.bytes != MESSAGE_BYTES || received.flags.contains(ReturnFlags::TRUNC) {
            return Ok(Self::Malformed);
        }
        let Some(message) = KeeperMessage::decode(&bytes) else {
            return Ok(Self::Malformed);
        };
        let is_truncated = received.flags.contains(ReturnFlags::CTRUNC);
        let expected = message.descriptor_count();
        Ok(match descriptors.len() {
            count if count == expected && !is_truncated => Self::Complete(message, descriptors),
            count if count < expected && is_truncated => Self::OutOfDescriptors(message),
            _ => Self::Malformed,
        })
    }
}

//! What travels between the server and a hand: a head, a text, data, and perhaps descriptors.
//!
//! The same code for both ends, whether they block or not: each call here is one system call.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use bytes::Bytes;
use exec_wire::limits;
use rustix::{
    buffer::spare_capacity,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
    },
};

/// A frame that was received whole.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) class: Class,
    pub(super) text: Bytes,
    pub(super) data: Bytes,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum Class {
    /// A request, or a good answer.
    Good = 0,
    /// The errors of a [`FileError`](exec_env::filesystem::FileError).
    NotFound = 1,
    Invalid = 2,
    Refused = 3,
    Host = 4,
    /// Nothing more follows.
    Ended = 5,
}

impl Class {
    fn from_number(number: u8) -> Option<Self> {
        let all = [
            Self::Good,
            Self::NotFound,
            Self::Invalid,
            Self::Refused,
            Self::Host,
            Self::Ended,
        ];
        all.into_iter().find(|class| *class as u8 == number)
    }
}

#[derive(Clone, Copy, Debug)]
struct Head {
    class: Class,
    text: usize,
    data: usize,
}

impl Head {
    fn encode(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0] = self.class as u8;
        bytes[8..16].copy_from_slice(&(self.text as u64).to_le_bytes());
        bytes[16..24].copy_from_slice(&(self.data as u64).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let [class, _, _, _, _, _, _, _, lengths @ ..] = bytes;
        let (text, data) = lengths.split_first_chunk::<8>()?;
        let length =
            |bytes: &[u8]| usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok();
        let head = Self {
            class: Class::from_number(*class)?,
            text: length(text)?,
            data: length(data)?,
        };
        (head.text <= MAX_TEXT_BYTES && head.data <= MAX_DATA_BYTES).then_some(head)
    }
}

/// A frame that is being sent.
#[derive(Debug)]
pub(super) struct Outgoing<'a> {
    head: [u8; HEAD_BYTES],
    text: &'a [u8],
    data: &'a [u8],
    descriptors: &'a [BorrowedFd<'a>],
    sent: usize,
}

impl<'a> Outgoing<'a> {
    pub(super) fn new(class: Class, text: &'a [u8], data: &'a [u8]) -> Self {
        let head = Head {
            class,
            text: text.len(),
            data: data.len(),
        };
        Self {
            head: head.encode(),
            text,
            data,
            descriptors: &[],
            sent: 0,
        }
    }

    /// Takes descriptors along, at most [`MAX_DESCRIPTORS`].
    pub(super) fn with(self, descriptors: &'a [BorrowedFd<'a>]) -> Self {
        Self {
            descriptors,
            ..self
        }
    }

    /// Sends what can be sent. `true`: all of it was.
    pub(super) fn send(&mut self, socket: impl AsFd) -> io::Result<bool> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if self.sent == 0
            && !self.descriptors.is_empty()
            && !ancillary.push(SendAncillaryMessage::ScmRights(self.descriptors))
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut parts = [&self.head[..], self.text, self.data].map(IoSlice::new);
        let mut parts = &mut parts[..];
        IoSlice::advance_slices(&mut parts, self.sent);
        self.sent += sendmsg(socket, parts, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(self.sent == self.head.len() + self.text.len() + self.data.len())
    }

    /// Tells whether the other end has got anything.
    pub(super) fn has_begun(&self) -> bool {
        self.sent > 0
    }
}

/// Frames that are being received.
#[derive(Debug)]
pub(super) struct Incoming {
    /// What was received last: a small frame is received by one call.
    first: Box<[u8]>,
    /// How much of `first` is there, and was not taken.
    waiting: std::ops::Range<usize>,
    head: Option<Head>,
    body: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Default for Incoming {
    fn default() -> Self {
        Self {
            first: vec![0; FIRST_BYTES].into_boxed_slice(),
            waiting: 0..0,
            head: None,
            body: Vec::new(),
            descriptors: Vec::new(),
        }
    }
}

impl Incoming {
    /// Takes a frame that is there already, or receives some more of one. `None`: call again.
    ///
    /// # Errors
    /// Fails if the socket does or has ended, and if what was received is no frame.
    pub(super) fn receive(&mut self, socket: impl AsFd) -> io::Result<Option<Frame>> {
        if let Some(frame) = self.take()? {
            return Ok(Some(frame));
        }
        if self.head.is_some() {
            let space = spare_capacity(&mut self.body);
            if recv(socket, space, RecvFlags::empty())?.0 == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        } else {
            self.receive_first(socket)?;
        }
        self.take()
    }

    fn receive_first(&mut self, socket: impl AsFd) -> io::Result<()> {
        self.first.copy_within(self.waiting.clone(), 0);
        self.waiting = 0..self.waiting.len();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.first[self.waiting.end..])];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(socket, &mut parts, &mut ancillary, flags)?.bytes;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.waiting.end += received;
        Ok(())
    }

    /// Moves what was received to where it belongs; returns the frame that is complete by that.
    fn take(&mut self) -> io::Result<Option<Frame>> {
        let head = match self.head {
            Some(head) => head,
            None => {
                let Some((head, _)) = self.first[self.waiting.clone()].split_first_chunk() else {
                    return Ok(None);
                };
                let head = Head::decode(head).ok_or(io::ErrorKind::InvalidData)?;
                self.waiting.start += HEAD_BYTES;
                self.body.try_reserve_exact(head.text + head.data)?;
                *self.head.insert(head)
            }
        };
        let missing = head.text + head.data - self.body.len();
        let taken = missing.min(self.waiting.len());
        let end = self.waiting.start + taken;
        self.body
            .extend_from_slice(&self.first[self.waiting.start..end]);
        self.waiting.start = end;
        if taken < missing {
            return Ok(None);
        }
        self.head = None;
        let mut text = Bytes::from(std::mem::take(&mut self.body));
        let data = text.split_off(head.text);
        Ok(Some(Frame {
            class: head.class,
            text,
            data,
            descriptors: std::mem::take(&mut self.descriptors),
        }))
    }
}

/// Class, padding, and the two lengths.
const HEAD_BYTES: usize = 24;
/// What is received before the length is known: a small file and its head.
const FIRST_BYTES: usize = 16 << 10;
/// Longest text: the names of a directory, of 255 bytes that take six each in JSON, and their members.
pub(super) const MAX_TEXT_BYTES: usize = limits::MAX_DIRECTORY_ENTRIES * (255 * 6 + 64);
/// Most data: a file that is made up as it is read.
pub(super) const MAX_DATA_BYTES: usize = 512 << 20;
/// Most descriptors: what an enclosure takes along, or one opened file.
pub(super) const MAX_DESCRIPTORS: usize = 4;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn received(incoming: &mut Incoming, socket: &UnixStream) -> io::Result<Frame> {
        loop {
            if let Some(frame) = incoming.receive(socket)? {
                return Ok(frame);
            }
        }
    }

    #[test]
    fn frames_arrive_whole_whatever_their_size() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let sizes = [0, 1, FIRST_BYTES - HEAD_BYTES, FIRST_BYTES, 3_000_000];
        let sender = std::thread::spawn(move || {
            for size in sizes {
                let (text, data) = (vec![b'a'; size], vec![b'b'; size / 2]);
                let mut outgoing = Outgoing::new(Class::Good, &text, &data);
                while !outgoing.send(&ours).unwrap() {}
            }
        });
        let mut incoming = Incoming::default();
        for size in sizes {
            let frame = received(&mut incoming, &theirs).unwrap();
            assert_eq!(frame.class, Class::Good);
            assert!(frame.text == vec![b'a'; size] && frame.data == vec![b'b'; size / 2]);
        }
        sender.join().unwrap();
        let end = received(&mut incoming, &theirs).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn descriptors_come_with_their_frame() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        let descriptors = [one.as_fd(), other.as_fd()];
        let mut outgoing = Outgoing::new(Class::Good, b"text", b"").with(&descriptors);
        assert!(outgoing.send(&ours).unwrap());
        let frame = received(&mut Incoming::default(), &theirs).unwrap();
        assert_eq!(frame.descriptors.len(), 2);
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        for bytes in [
            [9; HEAD_BYTES],
            Head {
                class: Class::Good,
                text: MAX_TEXT_BYTES + 1,
                data: 0,
            }
            .encode(),
        ] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            rustix::io::write(&ours, &bytes).unwrap();
            let error = received(&mut Incoming::default(), &theirs).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}

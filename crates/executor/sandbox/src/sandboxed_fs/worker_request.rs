//! Requests to an fs worker, its replies, and the frames that carry them: header, text, data, and
//! optional descriptors.
//!
//! Both ends send and receive frames with the same code, blocking or not: each call makes one
//! system call.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use bytes::Bytes;
use exec_env::filesystem::{ChangeBatch, FileError};
use exec_wire::{
    fs::{
        CanonicalizePath, CopyPath, CreateDirectory, CreateSymlink, FindPaths, GetMetadata,
        OpenMode, PathChange, ReadDirectory, ReadFile, RemovePath, RenamePath, SearchText,
        SetMetadata, WalkTree, WriteFile,
    },
    limits,
    path_uri::PathUri,
};
use rustix::{
    buffer::spare_capacity,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// A file operation. The worker runs under the policy, so the `sandbox` member is not sent.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WorkerRequest {
    /// Reads a whole file.
    ReadFile(ReadFile),
    /// Writes the data of the frame to a file.
    WriteFile(WriteFile),
    /// Creates a directory.
    CreateDirectory(CreateDirectory),
    /// Returns the metadata of a path.
    Metadata(GetMetadata),
    /// Sets mode and modification time.
    SetMetadata(SetMetadata),
    /// Resolves all symbolic links.
    Canonicalize(CanonicalizePath),
    /// Lists a directory.
    ReadDirectory(ReadDirectory),
    /// Lists a directory tree.
    Walk(WalkTree),
    /// Removes a file, a link or a tree.
    Remove(RemovePath),
    /// Copies a file, a link or a tree.
    Copy(CopyPath),
    /// Renames a file.
    Rename(RenamePath),
    /// Creates a symbolic link.
    CreateSymlink(CreateSymlink),
    /// Searches file contents.
    Search(SearchText),
    /// Searches file names.
    Find(FindPaths),
    /// Opens a file.
    Open {
        /// Path of the file.
        path: PathUri,
        /// Access mode.
        mode: OpenMode,
    },
    /// Watches a path.
    Watch {
        /// Path to watch.
        path: PathUri,
        /// Watches everything below the path as well.
        tree: bool,
    },
    /// Watches for missing paths.
    WatchMissing {
        /// Paths that do not exist.
        missing: Vec<PathUri>,
        /// A path that exists.
        present: Option<PathUri>,
    },
}

impl WorkerRequest {
    /// Returns whether the operation leaves little memory allocated.
    pub(super) fn is_small(&self) -> bool {
        !matches!(
            self,
            Self::Walk(_) | Self::Search(_) | Self::Find(_) | Self::ReadDirectory(_)
        )
    }

    /// Removes the members that the worker does not need: it runs under the policy, and data is
    /// sent beside the text.
    pub(super) fn without_policy(mut self) -> Self {
        let sandbox = match &mut self {
            Self::ReadFile(request) => &mut request.sandbox,
            Self::WriteFile(request) => {
                request.data_base64 = None;
                &mut request.sandbox
            }
            Self::CreateDirectory(request) => &mut request.sandbox,
            Self::Metadata(request) => &mut request.sandbox,
            Self::SetMetadata(request) => &mut request.sandbox,
            Self::Canonicalize(request) => &mut request.sandbox,
            Self::ReadDirectory(request) => &mut request.sandbox,
            Self::Walk(request) => &mut request.sandbox,
            Self::Remove(request) => &mut request.sandbox,
            Self::Copy(request) => &mut request.sandbox,
            Self::Rename(request) => &mut request.sandbox,
            Self::CreateSymlink(request) => &mut request.sandbox,
            Self::Search(request) => &mut request.sandbox,
            Self::Find(request) => &mut request.sandbox,
            Self::Open { .. } | Self::Watch { .. } | Self::WatchMissing { .. } => return self,
        };
        *sandbox = None;
        self
    }
}

/// Reply of an fs worker.
#[derive(Debug)]
pub struct WorkerReply {
    /// JSON result.
    text: Bytes,
    /// Content of a small file.
    pub data: Bytes,
    /// Descriptor of the opened file.
    pub file: Option<OwnedFd>,
}

impl WorkerReply {
    /// Converts a frame into a reply or the error that it carries.
    pub(super) fn from_frame(frame: WorkerFrame) -> Result<Self, FileError> {
        let text = || String::from_utf8_lossy(&frame.text).into_owned();
        match frame.status {
            FrameStatus::NotFound => Err(FileError::NotFound(text())),
            FrameStatus::Invalid => Err(FileError::Invalid(text())),
            FrameStatus::Refused => Err(FileError::Refused(text())),
            FrameStatus::Host => Err(FileError::Host(text())),
            FrameStatus::Success | FrameStatus::Ended => Ok(Self {
                text: frame.text,
                data: frame.data,
                file: frame.descriptors.into_iter().next(),
            }),
        }
    }

    /// Decodes the result.
    ///
    /// # Errors
    /// Fails if the result has another type.
    pub fn into_result<T: DeserializeOwned>(self) -> Result<T, FileError> {
        serde_json::from_slice(&self.text).map_err(|error| invalid_reply(&error.to_string()))
    }

    /// Returns the opened file.
    ///
    /// # Errors
    /// Fails if the reply carries no descriptor.
    pub fn into_file(self) -> Result<OwnedFd, FileError> {
        self.file.ok_or_else(|| invalid_reply("no descriptor"))
    }
}

fn invalid_reply(why: &str) -> FileError {
    FileError::Host(format!("unexpected answer from the fs worker: {why}"))
}

/// Returns the frame status and the text of an error.
pub(super) fn status_of(error: FileError) -> (FrameStatus, String) {
    match error {
        FileError::NotFound(text) => (FrameStatus::NotFound, text),
        FileError::Invalid(text) => (FrameStatus::Invalid, text),
        FileError::Refused(text) => (FrameStatus::Refused, text),
        FileError::Host(text) => (FrameStatus::Host, text),
        FileError::Remote(_) | FileError::Disconnected(_) | _ => {
            (FrameStatus::Host, error.to_string())
        }
    }
}

/// Changes in the form that is sent to the server.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct EncodedChangeBatch {
    changes: Vec<PathChange>,
    overflow: bool,
}

impl From<ChangeBatch> for EncodedChangeBatch {
    fn from(ChangeBatch { changes, overflow }: ChangeBatch) -> Self {
        Self { changes, overflow }
    }
}

impl From<EncodedChangeBatch> for ChangeBatch {
    fn from(EncodedChangeBatch { changes, overflow }: EncodedChangeBatch) -> Self {
        Self { changes, overflow }
    }
}

/// A received frame.
#[derive(Debug)]
pub(super) struct WorkerFrame {
    pub(super) status: FrameStatus,
    pub(super) text: Bytes,
    pub(super) data: Bytes,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// Meaning of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum FrameStatus {
    /// A request, or a successful answer.
    Success = 0,
    /// Variants of [`FileError`].
    NotFound = 1,
    Invalid = 2,
    Refused = 3,
    Host = 4,
    /// End of a stream of frames.
    Ended = 5,
}

impl FrameStatus {
    fn from_byte(number: u8) -> Option<Self> {
        let all = [
            Self::Success,
            Self::NotFound,
            Self::Invalid,
            Self::Refused,
            Self::Host,
            Self::Ended,
        ];
        all.into_iter().find(|status| *status as u8 == number)
    }
}

#[derive(Clone, Copy, Debug)]
struct FrameHeader {
    status: FrameStatus,
    text: usize,
    data: usize,
}

impl FrameHeader {
    fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.status as u8;
        bytes[8..16].copy_from_slice(&(self.text as u64).to_le_bytes());
        bytes[16..24].copy_from_slice(&(self.data as u64).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let [status, _, _, _, _, _, _, _, lengths @ ..] = bytes;
        let (text, data) = lengths.split_first_chunk::<8>()?;
        let length =
            |bytes: &[u8]| usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok();
        let header = Self {
            status: FrameStatus::from_byte(*status)?,
            text: length(text)?,
            data: length(data)?,
        };
        (header.text <= MAX_TEXT_BYTES && header.data <= MAX_DATA_BYTES).then_some(header)
    }
}

/// Sends one frame.
#[derive(Debug)]
pub(super) struct FrameWriter<'a> {
    header: [u8; HEADER_BYTES],
    text: &'a [u8],
    data: &'a [u8],
    descriptors: &'a [BorrowedFd<'a>],
    sent: usize,
}

impl<'a> FrameWriter<'a> {
    pub(super) fn new(status: FrameStatus, text: &'a [u8], data: &'a [u8]) -> Self {
        let header = FrameHeader {
            status,
            text: text.len(),
            data: data.len(),
        };
        Self {
            header: header.encode(),
            text,
            data,
            descriptors: &[],
            sent: 0,
        }
    }

    /// Attaches descriptors, at most [`MAX_DESCRIPTORS`].
    pub(super) fn with_descriptors(self, descriptors: &'a [BorrowedFd<'a>]) -> Self {
        Self {
            descriptors,
            ..self
        }
    }

    /// Sends as much as the socket accepts. Returns `true` when the frame is complete.
    pub(super) fn send(&mut self, socket: impl AsFd) -> io::Result<bool> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if self.sent == 0
            && !self.descriptors.is_empty()
            && !ancillary.push(SendAncillaryMessage::ScmRights(self.descriptors))
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut parts = [&self.header[..], self.text, self.data].map(IoSlice::new);
        let mut parts = &mut parts[..];
        IoSlice::advance_slices(&mut parts, self.sent);
        self.sent += sendmsg(socket, parts, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(self.sent == self.header.len() + self.text.len() + self.data.len())
    }

    /// Returns whether the peer may have received a part of the frame.
    pub(super) fn has_sent(&self) -> bool {
        self.sent > 0
    }
}

/// Receives frames.
#[derive(Debug)]
pub(super) struct FrameReader {
    /// Receive buffer: a small frame takes one call.
    buffer: Box<[u8]>,
    /// Range of `buffer` that is received but not consumed.
    buffered: std::ops::Range<usize>,
    header: Option<FrameHeader>,
    body: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            buffered: 0..0,
            header: None,
            body: Vec::new(),
            descriptors: Vec::new(),
        }
    }
}

impl FrameReader {
    /// Returns a complete frame from the buffer, or receives more of it. `None`: call again.
    ///
    /// # Errors
    /// Fails if the socket fails or is closed, and if the received bytes are not a valid frame.
    pub(super) fn receive(&mut self, socket: impl AsFd) -> io::Result<Option<WorkerFrame>> {
        if let Some(frame) = self.take_frame()? {
            return Ok(Some(frame));
        }
        if self.header.is_some() {
            let space = spare_capacity(&mut self.body);
            if recv(socket, space, RecvFlags::empty())?.0 == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        } else {
            self.fill_buffer(socket)?;
        }
        self.take_frame()
    }

    fn fill_buffer(&mut self, socket: impl AsFd) -> io::Result<()> {
        self.buffer.copy_within(self.buffered.clone(), 0);
        self.buffered = 0..self.buffered.len();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.buffer[self.buffered.end..])];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let receive_whole = recvmsg(socket, &mut parts, &mut ancillary, flags)?.bytes;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if receive_whole == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.buffered.end += receive_whole;
        Ok(())
    }

    /// Consumes the buffer. Returns the frame if it is complete.
    fn take_frame(&mut self) -> io::Result<Option<WorkerFrame>> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let Some((header, _)) = self.buffer[self.buffered.clone()].split_first_chunk()
                else {
                    return Ok(None);
                };
                let header = FrameHeader::decode(header).ok_or(io::ErrorKind::InvalidData)?;
                self.buffered.start += HEADER_BYTES;
                self.body.try_reserve_exact(header.text + header.data)?;
                *self.header.insert(header)
            }
        };
        let missing = header.text + header.data - self.body.len();
        let count = missing.min(self.buffered.len());
        let end = self.buffered.start + count;
        self.body
            .extend_from_slice(&self.buffer[self.buffered.start..end]);
        self.buffered.start = end;
        if count < missing {
            return Ok(None);
        }
        self.header = None;
        let mut text = Bytes::from(std::mem::take(&mut self.body));
        let data = text.split_off(header.text);
        Ok(Some(WorkerFrame {
            status: header.status,
            text,
            data,
            descriptors: std::mem::take(&mut self.descriptors),
        }))
    }
}

/// Status, padding, and two lengths.
const HEADER_BYTES: usize = 24;
/// Size of the receive buffer: a header and a small file.
const BUFFER_BYTES: usize = 16 << 10;
/// Maximum text: a directory listing with names of 255 bytes, each escaped to six bytes in JSON,
/// and their other members.
pub(super) const MAX_TEXT_BYTES: usize = limits::MAX_DIRECTORY_ENTRIES * (255 * 6 + 64);
/// Maximum data: content of a generated file, which has no known size.
pub(super) const MAX_DATA_BYTES: usize = 512 << 20;
/// Maximum number of descriptors: those of a sandbox set-up, or one opened file.
const MAX_DESCRIPTORS: usize = 4;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn receive_whole(reader: &mut FrameReader, socket: &UnixStream) -> io::Result<WorkerFrame> {
        loop {
            if let Some(frame) = reader.receive(socket)? {
                return Ok(frame);
            }
        }
    }

    #[test]
    fn frames_of_any_size_arrive_whole() {
        let (sender_end, receiver_end) = UnixStream::pair().unwrap();
        let sizes = [0, 1, BUFFER_BYTES - HEADER_BYTES, BUFFER_BYTES, 3_000_000];
        let sender = std::thread::spawn(move || {
            for size in sizes {
                let (text, data) = (vec![b'a'; size], vec![b'b'; size / 2]);
                let mut writer = FrameWriter::new(FrameStatus::Success, &text, &data);
                while !writer.send(&sender_end).unwrap() {}
            }
        });
        let mut reader = FrameReader::default();
        for size in sizes {
            let frame = receive_whole(&mut reader, &receiver_end).unwrap();
            assert_eq!(frame.status, FrameStatus::Success);
            assert!(frame.text == vec![b'a'; size] && frame.data == vec![b'b'; size / 2]);
        }
        sender.join().unwrap();
        let end = receive_whole(&mut reader, &receiver_end).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn descriptors_arrive_with_their_frame() {
        let (sender_end, receiver_end) = UnixStream::pair().unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        let descriptors = [one.as_fd(), other.as_fd()];
        let mut writer =
            FrameWriter::new(FrameStatus::Success, b"text", b"").with_descriptors(&descriptors);
        assert!(writer.send(&sender_end).unwrap());
        let frame = receive_whole(&mut FrameReader::default(), &receiver_end).unwrap();
        assert_eq!(frame.descriptors.len(), 2);
    }

    #[test]
    fn malformed_frame_is_an_error() {
        for bytes in [
            [9; HEADER_BYTES],
            FrameHeader {
                status: FrameStatus::Success,
                text: MAX_TEXT_BYTES + 1,
                data: 0,
            }
            .encode(),
        ] {
            let (sender_end, receiver_end) = UnixStream::pair().unwrap();
            rustix::io::write(&sender_end, &bytes).unwrap();
            let error = receive_whole(&mut FrameReader::default(), &receiver_end).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}

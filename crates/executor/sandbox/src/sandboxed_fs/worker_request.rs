//! Requests to an fs worker and its replies.

use std::os::fd::OwnedFd;

use bytes::Bytes;
use exec_env::filesystem::{ChangeBatch, FileError};
use exec_wire::{
    fs::{
        CanonicalizePath, CopyPath, CreateDirectory, FindPaths, GetMetadata, OpenMode, PathChange,
        ReadDirectory, ReadFile, RemovePath, RenamePath, SearchText, WalkTree, WriteFile,
    },
    path_uri::PathUri,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::worker_frame::{FrameStatus, WorkerFrame};

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
    /// Returns whether the operation changes files. A change runs to completion and is never
    /// retried.
    pub fn is_change(&self) -> bool {
        match self {
            Self::WriteFile(_)
            | Self::CreateDirectory(_)
            | Self::Remove(_)
            | Self::Copy(_)
            | Self::Rename(_) => true,
            Self::Open { mode, .. } => *mode != OpenMode::Read,
            Self::ReadFile(_)
            | Self::Metadata(_)
            | Self::Canonicalize(_)
            | Self::ReadDirectory(_)
            | Self::Walk(_)
            | Self::Search(_)
            | Self::Find(_)
            | Self::Watch { .. }
            | Self::WatchMissing { .. } => false,
        }
    }

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
            Self::Canonicalize(request) => &mut request.sandbox,
            Self::ReadDirectory(request) => &mut request.sandbox,
            Self::Walk(request) => &mut request.sandbox,
            Self::Remove(request) => &mut request.sandbox,
            Self::Copy(request) => &mut request.sandbox,
            Self::Rename(request) => &mut request.sandbox,
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

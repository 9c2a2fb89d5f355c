//! Files that are open, read and written by blocks.

use serde::{Deserialize, Serialize};

use crate::{
    bytes::Base64,
    id::HandleId,
    method::{Method, MethodName},
    path_uri::PathUri,
    process::Empty,
    sandbox::Sandbox,
};

/// `fs/open`: opens a regular file under a name of the client's.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenFile {
    /// The client's name for the open file, unique on the connection.
    pub handle_id: HandleId,
    /// The file.
    pub path: PathUri,
    /// To read it, or to replace it.
    #[serde(default)]
    pub mode: OpenMode,
    /// The policy under which it is opened. It is not looked at again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for OpenFile {
    const NAME: MethodName = MethodName::FsOpen;
    type Result = OpenedFile;
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum OpenMode {
    /// To read it.
    #[default]
    Read,
    /// To write it anew: it is created or emptied.
    Replace,
    /// To write parts of it: it is created or kept as it is.
    Update,
}

/// An open file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenedFile {
    /// The client's name for it.
    pub handle_id: HandleId,
}

/// `fs/readBlock`: reads from an open file. There is no cursor.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadBlock {
    /// The open file.
    pub handle_id: HandleId,
    /// Where the block begins.
    pub offset: u64,
    /// Bytes wanted, 1 to 1 MiB.
    pub len: u64,
}

impl Method for ReadBlock {
    const NAME: MethodName = MethodName::FsReadBlock;
    type Result = Block;
}

/// A part of a file.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    /// The bytes; absent when they travel raw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Base64>,
    /// The file had fewer bytes than were wanted.
    pub eof: bool,
}

/// `fs/writeBlock`: writes into an open file. Holes are allowed.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteBlock {
    /// The open file.
    pub handle_id: HandleId,
    /// Where the block begins.
    pub offset: u64,
    /// The bytes, 1 to 1 MiB; absent when they travel raw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Base64>,
}

impl Method for WriteBlock {
    const NAME: MethodName = MethodName::FsWriteBlock;
    type Result = Empty;
}

/// `fs/close`: closes an open file. An unknown one is closed already.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CloseFile {
    /// The open file.
    pub handle_id: HandleId,
}

impl Method for CloseFile {
    const NAME: MethodName = MethodName::FsClose;
    type Result = Empty;
}

//! `fs/*`: files and directories, whole, by blocks, watched and searched.
//!
//! Every path is a [`PathUri`](crate::path_uri::PathUri). What a request leaves out has the stock
//! server's default. Not here: what the operations do (`exec-fs`).

mod search;
mod watch;

use serde::{Deserialize, Serialize};

pub use self::{
    search::{Find, FoundPaths, Search, SearchMatch, SearchResult},
    watch::{
        Change, ChangeKind, Changed, MissingChanged, Unwatch, Watch, WatchMissing, Watched,
        Watching,
    },
};
use crate::{
    bytes::{Base64, UncheckedBase64},
    id::HandleId,
    method::{Method, MethodName},
    path_uri::PathUri,
    process::Empty,
    sandbox::Sandbox,
};

/// `fs/readFile`: reads a whole regular file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadFile {
    /// The file.
    pub path: PathUri,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The policy under which it is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for ReadFile {
    const NAME: MethodName = MethodName::FsReadFile;
    type Result = FileContent;
}

/// What a file holds.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileContent {
    /// Its bytes; absent when they travel raw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<Base64>,
}

/// `fs/writeFile`: creates a file or replaces what it holds.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteFile {
    /// The file.
    pub path: PathUri,
    /// Its bytes; absent when they travel raw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<UncheckedBase64>,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// Creates missing directories above the file.
    #[serde(default, skip_serializing_if = "is_false")]
    pub create_parents: bool,
    /// Readers see the old content or the new, and a failure leaves the old.
    #[serde(default, skip_serializing_if = "is_false")]
    pub atomic: bool,
    /// Permission bits, set whatever the umask is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// The policy under which it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for WriteFile {
    const NAME: MethodName = MethodName::FsWriteFile;
    type Result = Empty;
}

/// `fs/getMetadata`: tells what a path names.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GetMetadata {
    /// The path.
    pub path: PathUri,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The policy under which it is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for GetMetadata {
    const NAME: MethodName = MethodName::FsGetMetadata;
    type Result = FileMetadata;
}

/// What is known of a file. A link is followed, and said to be one.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileMetadata {
    /// It is a directory, perhaps behind a link.
    pub is_directory: bool,
    /// It is a regular file, perhaps behind a link.
    pub is_file: bool,
    /// The path itself names a link.
    pub is_symlink: bool,
    /// Bytes.
    pub size: u64,
    /// Milliseconds since the Unix epoch; 0 if unknown.
    pub created_at_ms: i64,
    /// Milliseconds since the Unix epoch; 0 if unknown.
    pub modified_at_ms: i64,
    /// Permission bits; absent if the server does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
}

/// `fs/canonicalize`: resolves every link of a path that exists.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Canonicalize {
    /// The path.
    pub path: PathUri,
    /// The policy under which it is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for Canonicalize {
    const NAME: MethodName = MethodName::FsCanonicalize;
    type Result = CanonicalPath;
}

/// A path without links.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CanonicalPath {
    /// The path.
    pub path: PathUri,
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// `fs/createDirectory`: makes a directory.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateDirectory {
    /// The directory.
    pub path: PathUri,
    /// Makes those above it, and takes one that exists. Absent: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The policy under which it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for CreateDirectory {
    const NAME: MethodName = MethodName::FsCreateDirectory;
    type Result = Empty;
}

/// `fs/readDirectory`: lists a directory.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadDirectory {
    /// The directory.
    pub path: PathUri,
    /// The policy under which it is listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for ReadDirectory {
    const NAME: MethodName = MethodName::FsReadDirectory;
    type Result = DirectoryListing;
}

/// What a directory holds, in no order.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DirectoryListing {
    /// Its entries, without `.` and `..`, and without links that lead nowhere.
    pub entries: Vec<DirectoryEntry>,
}

/// One name in a directory.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DirectoryEntry {
    /// The name; bytes that are not UTF-8 are replaced by U+FFFD.
    pub file_name: String,
    /// It is a directory, perhaps behind a link.
    pub is_directory: bool,
    /// It is a regular file, perhaps behind a link.
    pub is_file: bool,
}

/// `fs/walk`: lists a tree, breadth first.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Walk {
    /// Where the tree begins; not listed itself.
    pub path: PathUri,
    /// How far to go.
    pub options: WalkOptions,
    /// The policy under which it is walked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for Walk {
    const NAME: MethodName = MethodName::FsWalk;
    type Result = WalkResult;
}

/// How far a walk goes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WalkOptions {
    /// 0: only the root's own entries.
    pub max_depth: usize,
    /// Directories that are read, the root among them.
    pub max_directories: usize,
    /// Entries that are looked at.
    pub max_entries: usize,
    /// Lists and enters directories behind links, each real one once.
    pub follow_directory_symlinks: bool,
    /// Lists directories whose name begins with a dot, but does not enter them.
    #[serde(default)]
    pub prune_hidden_directories: bool,
}

/// A tree.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct WalkResult {
    /// Files and directories, breadth first, by name in each directory.
    pub entries: Vec<WalkEntry>,
    /// What could not be read.
    pub errors: Vec<WalkError>,
    /// A limit was reached: there is more.
    pub truncated: bool,
}

/// Something in a tree.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct WalkEntry {
    /// Where it is.
    pub path: PathUri,
    /// What it is.
    pub kind: EntryKind,
}

/// What a walk lists.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
}

/// Something in a tree that could not be read.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct WalkError {
    /// Where it is.
    pub path: PathUri,
    /// Why.
    pub message: String,
}

/// `fs/remove`: removes a file, a link or a tree. A link's target is never touched.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Remove {
    /// What to remove.
    pub path: PathUri,
    /// Removes what is below it, too. Absent: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// Takes it for done if nothing is there. Absent: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The policy under which it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for Remove {
    const NAME: MethodName = MethodName::FsRemove;
    type Result = Empty;
}

/// `fs/copy`: copies a file, a link or a tree.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Copy {
    /// What to copy.
    pub source_path: PathUri,
    /// What it becomes.
    pub destination_path: PathUri,
    /// Copies directories, too.
    pub recursive: bool,
    /// The policy under which it is copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for Copy {
    const NAME: MethodName = MethodName::FsCopy;
    type Result = Empty;
}

/// `fs/rename`: gives a file, a link or a directory another name, in one step.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rename {
    /// What to rename.
    pub source_path: PathUri,
    /// Its new name.
    pub destination_path: PathUri,
    /// Replaces what has the new name.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overwrite: bool,
    /// The policy under which it is renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for Rename {
    const NAME: MethodName = MethodName::FsRename;
    type Result = Empty;
}

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

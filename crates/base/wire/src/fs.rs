//! `fs/*`: files and directories, whole, by blocks, watched and searched.
//!
//! Every path is a [`PathUri`](crate::path_uri::PathUri). What a request leaves out has the stock
//! server's default. Not here: what the operations do (`exec-fs`).

mod directory;
mod file;
mod handle;
mod search;
mod tree;
mod watch;

pub use self::{
    directory::{
        CreateDirectory, DirectoryEntry, DirectoryListing, EntryKind, ReadDirectory, Walk,
        WalkEntry, WalkError, WalkOptions, WalkResult,
    },
    file::{
        CanonicalPath, Canonicalize, FileContent, FileMetadata, GetMetadata, ReadFile, WriteFile,
    },
    handle::{Block, CloseFile, OpenFile, OpenMode, OpenedFile, ReadBlock, WriteBlock},
    search::{Find, FoundPaths, Search, SearchMatch, SearchResult},
    tree::{Copy, Remove, Rename},
    watch::{
        Change, ChangeKind, Changed, MissingChanged, Unwatch, Watch, WatchMissing, Watched,
        Watching,
    },
};

//! The tools for files. Each is one request to the environment, or a few, under the policy of the
//! workspace.

mod edit;
mod find;
mod glob;
mod list;
mod patch;
mod read;
mod search;
mod text;
mod watch;
mod write;

pub(super) use self::{
    edit::EditFile, find::FindFiles, list::ListDirectory, patch::ApplyPatch, read::ReadFileTool,
    search::SearchFiles, watch::WatchFiles, write::WriteFileTool,
};

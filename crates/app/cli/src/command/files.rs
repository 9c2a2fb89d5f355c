//! What the commands for files have in common: what is said of files, where they are, what is done
//! again after a cut, and how Ctrl-C ends things.
//! Not here: the commands themselves.

mod cut;
mod entries;
mod failure;
mod kept;
mod native;
mod nowhere;
mod shown;

pub(crate) use self::{
    cut::{ATTEMPTS, persist},
    entries::{Entries, Entry, EntryKind, entries},
    failure::file_failure,
    kept::{Identity, look},
    native::native_entries,
    nowhere::leads_nowhere,
    shown::{below, exact, relative, relative_bytes, shown},
};

//! File operations on this machine: whole files, blocks, trees, walks, watches and searches.
//!
//! Every operation takes its request and blocks until it is done. It rejects foreign or unusable
//! paths. Invariant: an operation checks files after opening them, never a path before.
//!
//! Elsewhere: threads (except the watch thread), sandbox policy (the `sandbox` of a request is
//! ignored here), the wire's encoding.

mod ancestor_watch;
mod cached_reader;
mod cancel_flag;
mod copy;
mod descent;
mod directory;
mod filtered_tree;
mod find;
mod host_path;
mod inotify;
mod metadata;
mod regular_file;
mod remove;
mod rename;
mod resolve;
mod search;
mod symlink;
#[cfg(test)]
mod test_dir;
mod walk;
mod watch;
mod write_file;

pub use self::{
    ancestor_watch::watch_missing,
    cached_reader::CachedReader,
    cancel_flag::CancelFlag,
    copy::copy,
    directory::{create_directory, read_directory},
    find::find,
    metadata::{canonicalize, metadata, set_metadata},
    regular_file::{BlockFile, WholeFile},
    remove::remove,
    rename::rename,
    search::search,
    symlink::create_symlink,
    walk::walk,
    watch::watch,
    write_file::write_file,
};

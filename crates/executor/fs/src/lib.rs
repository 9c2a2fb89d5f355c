//! Files of this machine: whole and by blocks, walked, watched and searched.
//!
//! Every operation takes the request it serves and blocks until it is done; a foreign or unusable
//! path is refused here. Nothing is checked and then used: what is checked is what was opened.
//! Not here: threads, but for the one that hears of changes; sandbox policy (a request's `sandbox`
//! is not looked at); the wire's encoding.

mod ancestor_watch;
mod block_file;
mod cached_reader;
mod copy;
mod descent;
mod directory;
mod directory_stack;
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
#[cfg(test)]
mod test_dir;
mod walk;
mod watch;
mod whole_file;
mod workers;
mod write_file;

pub use self::{
    ancestor_watch::watch_missing,
    block_file::BlockFile,
    cached_reader::Cached,
    copy::copy,
    directory::{create_directory, read_directory},
    find::find,
    metadata::{canonicalize, metadata},
    remove::remove,
    rename::rename,
    search::search,
    walk::walk,
    watch::watch,
    whole_file::WholeFile,
    workers::Stop,
    write_file::write_file,
};

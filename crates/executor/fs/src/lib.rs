//! Files of this machine: whole and by blocks, walked, watched and searched.
//!
//! Every operation takes the request it serves and blocks until it is done; a foreign or unusable
//! path is refused here. Nothing is checked and then used: what is checked is what was opened.
//! Not here: threads, but for the one that hears of changes; sandbox policy (a request's `sandbox`
//! is not looked at); the wire's encoding.

mod cached;
mod canonical;
mod copy;
mod descent;
mod directory;
mod error;
mod find;
mod glob;
mod handle;
mod identity;
mod inotify;
mod levels;
mod listing;
mod metadata;
mod missing;
mod native;
mod regular;
mod remove;
mod rename;
mod replace;
mod resolve;
#[cfg(test)]
mod scratch;
mod search;
mod stop;
mod threads;
mod tree;
mod walk;
mod watch;
mod whole;
mod write;

pub use self::{
    cached::Cached,
    canonical::canonicalize,
    copy::copy,
    directory::{create_directory, read_directory},
    find::find,
    handle::BlockFile,
    metadata::metadata,
    missing::watch_missing,
    remove::remove,
    rename::rename,
    search::search,
    stop::Stop,
    walk::walk,
    watch::watch,
    whole::WholeFile,
    write::write_file,
};

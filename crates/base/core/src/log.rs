//! Retained process output: numbered, bounded, and replayable by a client that comes back.
//! Invariant: a number is given once, so readers can tell *lost* from *late*.
//! Not here: encoding.

mod followed;
mod page;
mod retained;
mod snapshot;

#[cfg(test)]
mod tests;

pub use self::{
    followed::{Follow, Followed, FollowedLog, FollowerId, From, Pace},
    page::Page,
    retained::{Event, Exit, OutputChunk, OutputLog, Retention},
    snapshot::{HeadTail, Snapshot},
};

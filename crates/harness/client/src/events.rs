//! The events of remote processes: put in order, retained, followed.

mod acknowledged;
mod attached;
mod follow;
mod here;
mod reorder;
mod retained;
mod serving;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    attached::{Launch, Origin, Owner, Replay, Turn},
    follow::{Followed, Held},
    here::reached,
    reorder::Broken,
    retained::{Missing, ProcessEvents},
};

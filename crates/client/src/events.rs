//! The events of remote processes: put in order, retained, followed.

mod acknowledged;
mod follow;
mod here;
mod reorder;
mod retained;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    follow::{Followed, Held},
    here::reached,
    reorder::Broken,
    retained::{Missing, ProcessEvents},
};

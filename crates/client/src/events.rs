//! The events of remote processes: put in order, retained, followed.

mod follow;
mod reorder;
mod retained;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    follow::Followed,
    reorder::Broken,
    retained::{End, ProcessEvents},
};

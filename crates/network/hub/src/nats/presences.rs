//! Which executor is connected where: a record per environment, written by the node that holds the
//! socket and believed only as long as that node lives.
//! Invariant: a presence that this node answers with names a node that lives and, if it is this
//! node, a socket that it has not given up.

mod held;
mod records;

pub(super) use self::{
    held::Lost,
    records::{News, Presences, SHAPE},
};

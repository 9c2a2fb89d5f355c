//! Unified exec on processes that do as they are told, in a time of their own.

mod ending;
mod events;
mod fake;
mod limits;
mod received;
mod retrying;
mod sink;
mod stage;
mod waiting;
mod writing;

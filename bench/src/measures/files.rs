//! The filesystem methods, `fs/*`: small calls, large files, walks, memory and watches.
//! The files are in the page cache: it is servers that are measured, not disks.
//! Content that comes back is checked by its length and by samples, outside of what is timed where
//! that would count.

mod bulk;
mod calls;
mod peak;
mod walk;
mod watch;

pub(super) use bulk::run as bulk;
pub(super) use calls::run as calls;
pub(super) use peak::run as peak;
pub(super) use walk::run as walk;
pub(super) use watch::run as watch;

//! Plans that are remembered for as long as nothing has changed that they were made from.
//!
//! What a policy comes to depends on names in directories, and on little else. So each directory in
//! which a name was looked for is remembered with the time of its last change, and a plan counts as
//! long as all of these are the same. The argument, from the root downwards: a name that comes, goes
//! or is replaced changes the time of its directory; nobody can set that time, and a change in the
//! same tick of the clock is excluded, because only directories that have not changed for a while are
//! remembered. An unchanged directory has the same file under the same name, a file never becomes a
//! directory or a link, and a link never says anything else. So every look would find what it found,
//! and each path names the very file that it named: what hands are kept for ([`Key`]) holds as well.
//!
//! What goes around directories has its own answer. Mounts: the kernel says when any has changed, and
//! all is forgotten. File systems whose directories do not keep times, or change elsewhere: nothing
//! there is remembered. Content that was read is read again and compared, since a mapped file can
//! change without its time. Globs, and what cannot be looked at: not remembered.
//!
//! Not here: how a plan is made (`policy`).
//!
//! [`Key`]: crate::files::Key

mod clock;
mod mounts;
mod plans;
mod recorder;
mod stamp;
#[cfg(test)]
mod tests;

pub use self::plans::Planned;
pub(crate) use self::{clock::coarse_now, plans::Plans};

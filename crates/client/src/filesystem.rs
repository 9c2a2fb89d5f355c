//! Files on a remote host: every operation is one call, and what it opens is closed when nobody
//! holds it any more.

mod gathered;
mod open;
mod remote;

pub(crate) use self::gathered::Gathered;
pub use self::remote::RemoteFileSystem;

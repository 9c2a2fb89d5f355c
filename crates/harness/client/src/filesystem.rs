//! Files on a remote host: every operation is one call, and what it opens is closed when nobody
//! holds it any more.

mod gathered;
mod open;
mod remote;

pub use self::remote::RemoteFileSystem;
pub(crate) use self::{gathered::Gathered, remote::file_error};

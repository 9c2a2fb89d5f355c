//! HTTP requests from a remote host.

mod queued;
mod remote;

pub(crate) use self::queued::{Delivery, Flow, QueuedBody};
pub use self::remote::RemoteHttpClient;

//! The websockets of executors and harnesses, and the frames between them.
//!
//! One task owns each socket. A frame is read, its stream id is looked at, and the very bytes go
//! into a circuit to the task of the other socket. What one side does not take is not read from the
//! other.
//! Not here: which URL is whose (`url`), which stream belongs to whom (`switch`), what frames say.

mod behind;
mod desk;
mod executor;
mod executor_attachment;
mod farewell;
mod flush;
mod harness;
mod ready;
#[cfg(test)]
mod tests;

pub(crate) use self::farewell::Farewell;
pub use self::{
    desk::{Admission, Refusal, Rendezvous},
    executor_attachment::ExecutorAttachment,
};

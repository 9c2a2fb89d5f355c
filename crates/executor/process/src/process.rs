//! A local process: starts a child, gives it an owner, and is what callers hold of it.

mod handle;
mod launch;

#[cfg(test)]
mod tests;

pub use self::{
    handle::LocalProcess,
    launch::{Launch, LaunchIo, Settings, launch},
};

//! Who listens to the kernel.

use std::time::Instant;

use super::{event::Event, instance::Watches};

/// Makes a task on the thread, and takes hold of its first directories; `None` if it cannot be.
pub(crate) type Begin = Box<dyn FnOnce(&mut Watches<'_>) -> Option<Box<dyn Task>> + Send>;

/// A listener. It lives on the thread of the instance, so it must not wait for anybody.
pub(crate) trait Task: Send {
    /// Handles an event of a directory that is held, or was until a moment ago.
    fn handle_event(&mut self, event: &Event<'_>, watches: &mut Watches<'_>);

    /// Handles the loss of events, nobody knows which.
    fn handle_overflow(&mut self);

    /// Handles that the time of `poll_timeout` may have come.
    fn handle_timeout(&mut self, watches: &mut Watches<'_>, now: Instant);

    /// Does a small part of the work that is left. Events are read in between.
    fn work(&mut self, watches: &mut Watches<'_>);

    /// Returns when the task wants to be called even if nothing happens.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Tells whether there is work left.
    fn has_work(&self) -> bool;

    /// Tells whether the task has ended by itself.
    fn is_over(&self) -> bool;
}

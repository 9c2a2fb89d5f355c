//! How a call shows a command.

use tokio::time::Instant;

use super::{
    call::{CallId, View},
    output::ToolOutput,
    process::{About, Shared},
};

/// What a call wants to show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Show<'a> {
    /// The call.
    pub(super) call: &'a CallId,
    /// When it began.
    pub(super) began: Instant,
    pub(super) view: View,
    pub(super) tokens: usize,
}

impl Show<'_> {
    /// Takes what no call has shown of a command.
    pub(super) fn output(&self, about: &About, shared: &Shared) -> ToolOutput {
        let mut gathered = shared.lock();
        ToolOutput {
            wall_time: self.began.elapsed(),
            transcript: gathered.take(self.call, self.view, self.tokens),
            running: (!gathered.over).then_some(about.number),
            exit: gathered.exit.clone(),
            failure: gathered.failure.clone(),
        }
    }
}

//! `apply_patch`.
//!
//! Everything is read and checked before anything is written. If writing fails all the same, what was
//! written is put back. A call that is cancelled meanwhile goes on with it.

mod carry;
mod names;
mod plan;

use schemars::JsonSchema;
use serde::Deserialize;

use self::plan::Plan;
use crate::mcp::{
    answer::{Answer, Complaint},
    patch::Patch,
    tool::{Effect, Tool},
    work::Work,
};

/// The arguments of `apply_patch`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct ApplyPatch {
    /// The whole patch, from `*** Begin Patch` to `*** End Patch`.
    patch: String,
}

impl Tool for ApplyPatch {
    const NAME: &'static str = "apply_patch";
    const TITLE: &'static str = "Apply a patch";
    const DESCRIPTION: &'static str = "Changes several files at once, all or none. The patch has this \
        form:\n\n*** Begin Patch\n*** Add File: path/new.txt\n+every line of the new file\n*** Update File: \
        path/old.txt\n*** Move to: path/renamed.txt\n@@ a line above the change, such as def f():\n lines \
        that stay begin with a blank\n-lines that go\n+lines that come\n*** Delete File: path/gone.txt\n*** \
        End Patch\n\nShow about three lines that stay around each change. `*** Move to:` and the text behind \
        `@@` are optional; `@@` begins each further change in a file, from its beginning to its end; `*** End \
        of File` behind a change says that it is at the end. Paths are absolute, or relative to the workspace.";
    const EFFECT: Effect = Effect::Edits;

    async fn call(self, work: &Work) -> Result<Answer, Complaint> {
        let patch = Patch::parse(&self.patch)?;
        let turn = work.editing().await;
        let mut plan = Plan::default();
        for operation in &patch.operations {
            plan.add(work, operation).await?;
        }
        let summary = plan.summary();
        // In a task, which whoever waits no longer does not end: half of a patch is worse than all of it.
        let work = work.clone();
        let carried_out = tokio::spawn(async move {
            let _turn = turn;
            plan.carry_out(&work).await
        });
        carried_out
            .await
            .map_err(|error| Complaint(format!("the patch was not carried out: {error}")))??;
        Ok(Answer::text(summary))
    }
}

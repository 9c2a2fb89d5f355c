//! `terminate_process`.

use std::sync::Arc;

use exec_env::process::ProcessNumber;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::output::{CommandOutput, answer};
use crate::mcp::{
    answer::{Answer, Complaint},
    tool::{self, Effect, Tool},
    work::Work,
};

/// The arguments of `terminate_process`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct TerminateProcess {
    /// Session ID that exec_command returned.
    session_id: u64,
}

impl Tool for TerminateProcess {
    const NAME: &'static str = "terminate_process";
    const TITLE: &'static str = "End a running command";
    const DESCRIPTION: &'static str = "Ends a command that exec_command left running, and everything that it has started. \
        Returns its last output and its exit code.";
    const EFFECT: Effect = Effect::Ends;

    fn answers() -> Option<Arc<JsonObject>> {
        Some(tool::schema::<CommandOutput>())
    }

    async fn call(self, work: &Work) -> Result<Answer, Complaint> {
        let ended = work
            .exec()
            .terminate(work.call(), ProcessNumber(self.session_id));
        Ok(answer(ended.await?, work))
    }
}

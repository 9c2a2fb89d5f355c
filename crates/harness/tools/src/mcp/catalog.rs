//! Which tools there are.

use futures_util::future::{BoxFuture, FutureExt};
use rmcp::model::{JsonObject, Tool as Definition};

use super::{
    answer::{Answer, Complaint},
    commands::{ExecCommandTool, ListProcesses, TerminateProcess, WriteStdinTool},
    files::{
        ApplyPatch, EditFile, FindFiles, ListDirectory, ReadFileTool, SearchFiles, WatchFiles,
        WriteFileTool,
    },
    tool::{self, Effect, Tool},
    work::Work,
    workspace::Enclosure,
};

/// A tool that clients may call.
pub(super) struct Listed {
    definition: Definition,
    effect: Effect,
    call: Call,
}

type Call = for<'a> fn(Option<JsonObject>, &'a Work) -> BoxFuture<'a, Result<Answer, Complaint>>;

impl Listed {
    fn new<T: Tool>() -> Self {
        Self {
            definition: tool::definition::<T>(),
            effect: T::EFFECT,
            call: |arguments, work| tool::run::<T>(arguments, work).boxed(),
        }
    }

    /// What clients are told of it.
    pub(super) fn definition(&self) -> &Definition {
        &self.definition
    }

    /// Reads the arguments and calls it.
    pub(super) async fn call(
        &self,
        arguments: Option<JsonObject>,
        work: &Work,
    ) -> Result<Answer, Complaint> {
        (self.call)(arguments, work).await
    }
}

impl std::fmt::Debug for Listed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.definition.name.fmt(f)
    }
}

/// Every tool that is of use where files may be treated like this.
pub(super) fn tools(enclosure: Enclosure) -> Vec<Listed> {
    let mut tools = vec![
        Listed::new::<ExecCommandTool>(),
        Listed::new::<WriteStdinTool>(),
        Listed::new::<ListProcesses>(),
        Listed::new::<TerminateProcess>(),
        Listed::new::<ReadFileTool>(),
        Listed::new::<WriteFileTool>(),
        Listed::new::<EditFile>(),
        Listed::new::<ApplyPatch>(),
        Listed::new::<ListDirectory>(),
        Listed::new::<FindFiles>(),
        Listed::new::<SearchFiles>(),
        Listed::new::<WatchFiles>(),
    ];
    if enclosure == Enclosure::ReadOnly {
        tools.retain(|tool| !tool.effect.writes_files());
    }
    tools
}

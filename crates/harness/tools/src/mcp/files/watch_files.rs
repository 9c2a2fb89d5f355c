//! The tool `watch_files`.

use std::{collections::BTreeMap, time::Duration};

use exec_env::filesystem::{WatchDepth, WatchPathRequest};
use exec_wire::{fs::PathChangeKind, path_uri::PathUri};
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use crate::mcp::{
    session::McpContext,
    tool::{McpTool, ToolEffect},
    tool_answer::{ToolAnswer, ToolError},
};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_TIMEOUT: Duration = Duration::from_secs(600);
/// How long to collect further changes after the first one: an editor or a build makes several.
const SETTLE_TIME: Duration = Duration::from_millis(200);
/// Maximum number of changes shown.
const MAX_SHOWN_CHANGES: usize = 500;

/// The arguments of `watch_files`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct WatchFiles {
    /// File or directory that exists: absolute, or relative to the workspace. Default: the
    /// workspace.
    #[serde(default)]
    path: Option<String>,
    /// Watches only the directory's own entries, not everything below it.
    #[serde(default)]
    entries_only: bool,
    /// How long to wait for a change, in milliseconds. Default: 30000; at most 600000, or 50000 if
    /// the client takes no notifications of progress.
    #[serde(default)]
    timeout_ms: Option<u64>,
}

impl McpTool for WatchFiles {
    const NAME: &'static str = "watch_files";
    const TITLE: &'static str = "Wait for changes of files";
    const DESCRIPTION: &'static str = "Waits until something below a path is created, modified, removed \
        or renamed, then returns what changed. Returns without changes when the time is up.";
    const EFFECT: ToolEffect = ToolEffect::ReadOnly;

    async fn call(self, ctx: &McpContext) -> Result<ToolAnswer, ToolError> {
        let wait = self
            .timeout_ms
            .map_or(DEFAULT_TIMEOUT, Duration::from_millis);
        if wait > MAX_TIMEOUT {
            let most = MAX_TIMEOUT.as_millis();
            return Err(ToolError(format!("`timeout_ms` must be at most {most}")));
        }
        let wait = ctx.progress_support().limit_wait(wait);
        let watch = WatchPathRequest {
            path: ctx.path(self.path.as_deref().unwrap_or("."))?,
            depth: match self.entries_only {
                true => WatchDepth::Entries,
                false => WatchDepth::Tree,
            },
            sandbox: ctx.sandbox(),
        };
        let mut watcher = ctx.files().watch(watch).await?;
        let mut until = Instant::now() + wait;
        let (mut changed, mut overflowed) = (BTreeMap::<PathUri, PathChangeKind>::new(), false);
        let mut watch_ended = false;
        loop {
            match timeout_at(until, watcher.changes.next()).await {
                Ok(Some(batch)) => {
                    if changed.is_empty() && !overflowed {
                        until = until.min(Instant::now() + SETTLE_TIME);
                    }
                    overflowed |= batch.overflow;
                    changed.extend(batch.changes.into_iter().map(|one| (one.path, one.kind)));
                    overflowed |= changed.len() > MAX_SHOWN_CHANGES;
                    while changed.len() > MAX_SHOWN_CHANGES {
                        changed.pop_last();
                    }
                }
                Ok(None) => {
                    watch_ended = true;
                    break;
                }
                Err(_) => break,
            }
        }
        let mut lines: Vec<String> = changed
            .iter()
            .map(|(path, kind)| format!("{} {}", change_name(*kind), ctx.display_path(path)))
            .collect();
        if overflowed {
            lines.push("[there are more changes than listed: check everything again]".to_owned());
        }
        if watch_ended {
            lines.push("[the watched path is gone]".to_owned());
        }
        if lines.is_empty() {
            return Ok(ToolAnswer::text(format!(
                "Nothing has changed for {:.1} seconds.",
                wait.as_secs_f64()
            )));
        }
        Ok(ToolAnswer::text(lines.join("\n")))
    }
}

fn change_name(kind: PathChangeKind) -> &'static str {
    match kind {
        PathChangeKind::Created => "created",
        PathChangeKind::Modified => "modified",
        PathChangeKind::Removed => "removed",
        PathChangeKind::Renamed => "renamed",
        PathChangeKind::Unknown => "changed",
    }
}

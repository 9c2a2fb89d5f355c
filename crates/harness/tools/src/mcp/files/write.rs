//! `write_file`.

use exec_env::filesystem::FileError;
use exec_wire::fs::GetMetadata;
use schemars::JsonSchema;
use serde::Deserialize;

use super::text::write_text;
use crate::mcp::{
    answer::{Answer, Complaint},
    tool::{Effect, Tool},
    work::Work,
};

/// The arguments of `write_file`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct WriteFileTool {
    /// File to create or replace: absolute, or relative to the workspace.
    path: String,
    /// All that the file is to hold.
    content: String,
}

impl Tool for WriteFileTool {
    const NAME: &'static str = "write_file";
    const TITLE: &'static str = "Write a file";
    const DESCRIPTION: &'static str = "Creates a file, or replaces all of its content, in one step. \
        Missing directories above it are made. To change a part of a file use edit_file or apply_patch.";
    const EFFECT: Effect = Effect::Replaces;

    async fn call(self, work: &Work) -> Result<Answer, Complaint> {
        let path = work.file(&self.path)?;
        let turn = work.editing().await;
        let before = work.files().metadata(GetMetadata {
            path: path.clone(),
            follow_symlinks: None,
            sandbox: work.sandbox(),
        });
        let verb = match before.await {
            Ok(metadata) if metadata.is_directory => {
                let shown = work.show(&path);
                return Err(Complaint(format!("`{shown}` is a directory")));
            }
            Ok(_) => "Replaced",
            Err(FileError::NotFound(_)) => "Created",
            Err(error) => return Err(error.into()),
        };
        let (shown, size) = (work.show(&path), self.content.len());
        write_text(work, &path, self.content, turn).await?;
        Ok(Answer::text(format!("{verb} {shown} ({size} bytes)")))
    }
}

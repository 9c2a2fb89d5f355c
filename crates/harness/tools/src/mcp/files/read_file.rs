//! The tool `read_file`.

use bytes::Bytes;
use exec_env::filesystem::FileStream;
use exec_wire::path_uri::PathUri;
use futures_util::{StreamExt, TryStreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::mcp::{
    session::McpContext,
    tool::{McpTool, ToolAnswer, ToolEffect, ToolError},
};

const DEFAULT_LINES: usize = 2000;
/// Larger files are read in blocks, only as far as needed.
const WHOLE_BYTES: u64 = 8 << 20;
/// Maximum size of an image: with base64 it fits into an answer.
const IMAGE_BYTES: usize = 700 << 10;
/// Number of bytes checked for binary content.
const PROBE_BYTES: usize = 8 << 10;

/// The arguments of `read_file`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct ReadFileTool {
    /// File: absolute, or relative to the workspace.
    path: String,
    /// First line to show, counted from 1. Default: 1.
    #[serde(default)]
    offset: Option<usize>,
    /// How many lines to show at most. Default: 2000.
    #[serde(default)]
    limit: Option<usize>,
    /// Prefixes each line with its number.
    #[serde(default)]
    line_numbers: bool,
}

impl McpTool for ReadFileTool {
    const NAME: &'static str = "read_file";
    const TITLE: &'static str = "Read a file";
    const DESCRIPTION: &'static str = "Shows the lines of a text file, from offset on; at most 128 KiB at \
        a time, and says where to go on. PNG, JPEG, GIF and WebP files of up to 700 KiB are shown as pictures; \
        other binary files are only described.";
    const EFFECT: ToolEffect = ToolEffect::ReadOnly;

    async fn call(self, ctx: &McpContext) -> Result<ToolAnswer, ToolError> {
        let (first, limit) = (
            self.offset.unwrap_or(1),
            self.limit.unwrap_or(DEFAULT_LINES),
        );
        if first == 0 || limit == 0 {
            return Err(ToolError::new("`offset` and `limit` are counted from 1"));
        }
        let path = ctx.path(&self.path)?;
        let name = ctx.display_path(&path);
        let metadata = ctx.metadata(&path).await?;
        if metadata.is_directory {
            let text = format!("`{name}` is a directory: use list_directory");
            return Err(ToolError(text));
        }
        if !metadata.is_file {
            return Err(ToolError(format!("`{name}` is not a regular file")));
        }
        let mut blocks = blocks(ctx, &path, metadata.size).await?;
        let start = blocks.try_next().await?.unwrap_or_default();
        if let Some(kind) = image_type(&start) {
            let size = metadata.size;
            if start.len() <= IMAGE_BYTES && start.len() as u64 == size {
                return Ok(ToolAnswer::image(&start, kind));
            }
            return Ok(ToolAnswer::text(format!(
                "[{kind} file of {size} bytes: {name}; at most {IMAGE_BYTES} can be shown: make a smaller \
                 copy with a command and read that]"
            )));
        }
        if is_binary(&start) {
            let size = metadata.size;
            return Ok(ToolAnswer::text(format!(
                "[binary file of {size} bytes: {name}]"
            )));
        }
        let mut window = LineWindow {
            first,
            limit,
            is_numbered: self.line_numbers,
            ..LineWindow::default()
        };
        window.push_block(&start);
        while !window.is_full {
            match blocks.try_next().await? {
                Some(block) => window.push_block(&block),
                None => break,
            }
        }
        window.into_text().map(ToolAnswer::text).map_err(ToolError)
    }
}

/// Returns the content in one or more blocks.
async fn blocks(ctx: &McpContext, path: &PathUri, size: u64) -> Result<FileStream, ToolError> {
    let read = ctx.read_request(path);
    if size > WHOLE_BYTES {
        return Ok(ctx.files().read_file_stream(read).await?);
    }
    let content = ctx.files().read_file(read).await?;
    Ok(stream::iter([Ok(content)]).boxed())
}

/// Returns the MIME type of an image by its first bytes.
fn image_type(start: &Bytes) -> Option<&'static str> {
    match start {
        start if start.starts_with(b"\x89PNG\r\n\x1a\n") => Some("image/png"),
        start if start.starts_with(b"\xff\xd8\xff") => Some("image/jpeg"),
        start if start.starts_with(b"GIF87a") || start.starts_with(b"GIF89a") => Some("image/gif"),
        start if start.starts_with(b"RIFF") && start.get(8..12) == Some(b"WEBP") => {
            Some("image/webp")
        }
        _ => None,
    }
}

fn is_binary(start: &Bytes) -> bool {
    let probe = &start[..start.len().min(PROBE_BYTES)];
    let broken = match str::from_utf8(probe) {
        // The probe may end inside a character.
        Err(error) => error.error_len().is_some() || probe.len() < PROBE_BYTES,
        Ok(_) => false,
    };
    broken || probe.contains(&0)
}

/// Maximum text shown of one file: a third of the context of a small model.
const MAX_BYTES: usize = 128 << 10;
/// Maximum length of a line. A line of a generated file would hide all others.
const MAX_LINE_BYTES: usize = 16 << 10;

/// A range of lines of a file that is read in blocks.
#[derive(Debug, Default)]
struct LineWindow {
    /// Number of the first line, counted from 1.
    first: usize,
    limit: usize,
    /// Whether lines are prefixed with their numbers.
    is_numbered: bool,
    /// Number of complete lines so far.
    lines: usize,
    /// The truncated start of an incomplete line, and its full length so far.
    line: Vec<u8>,
    length: usize,
    text: String,
    shown: usize,
    /// Whether further lines will not be shown.
    is_full: bool,
}

impl LineWindow {
    /// Adds the next block.
    fn push_block(&mut self, block: &[u8]) {
        for part in block.split_inclusive(|byte| *byte == b'\n') {
            if self.is_full {
                return;
            }
            if self.lines + 1 >= self.first {
                let capacity = MAX_LINE_BYTES.saturating_sub(self.line.len());
                self.line
                    .extend_from_slice(&part[..part.len().min(capacity)]);
            }
            self.length += part.len();
            if part.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    /// Returns the shown text and the next offset, or why nothing is shown.
    fn into_text(mut self) -> Result<String, String> {
        if self.length > 0 && !self.is_full {
            self.end_line();
        }
        if self.lines == 0 && !self.is_full {
            return Ok("[the file is empty]".to_owned());
        }
        if self.shown == 0 && !self.is_full {
            return Err(format!("the file has only {} lines", self.lines));
        }
        if self.is_full {
            let (first, next) = (self.first, self.first + self.shown);
            let last = next - 1;
            self.text.push_str(&format!(
                "[lines {first} to {last}; go on with offset {next}]\n"
            ));
        }
        Ok(self.text)
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let length = std::mem::take(&mut self.length);
        self.lines += 1;
        if self.lines < self.first {
            return;
        }
        if self.shown == self.limit || self.text.len() + line.len() > MAX_BYTES {
            self.is_full = true;
            return;
        }
        if self.is_numbered {
            self.text.push_str(&format!("{:>6}\t", self.lines));
        }
        self.text.push_str(&String::from_utf8_lossy(&line));
        if length > line.len() {
            self.text.push_str(&format!("… [line of {length} bytes]"));
        }
        if !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.shown += 1;
    }
}

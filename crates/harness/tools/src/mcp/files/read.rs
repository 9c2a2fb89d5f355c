//! `read_file`.

mod window;

use bytes::Bytes;
use exec_env::filesystem::FileStream;
use exec_wire::{
    fs::{GetMetadata, ReadFile},
    path_uri::PathUri,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;

use self::window::{Numbers, Window};
use crate::mcp::{
    answer::{Answer, Complaint},
    tool::{Effect, Tool},
    work::Work,
};

const DEFAULT_LINES: usize = 2000;
/// Larger files are read by blocks, and only as far as is needed.
const WHOLE_BYTES: u64 = 8 << 20;
/// Largest picture that is shown: a third larger in base64, it fits into an answer.
const IMAGE_BYTES: usize = 700 << 10;
/// How far to look for what only binary files hold.
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
    /// Puts its number in front of each line.
    #[serde(default)]
    line_numbers: bool,
}

impl Tool for ReadFileTool {
    const NAME: &'static str = "read_file";
    const TITLE: &'static str = "Read a file";
    const DESCRIPTION: &'static str = "Shows the lines of a text file, from offset on; at most 128 KiB at \
        a time, and says where to go on. PNG, JPEG, GIF and WebP files of up to 700 KiB are shown as pictures; \
        other binary files are only described.";
    const EFFECT: Effect = Effect::Reads;

    async fn call(self, work: &Work) -> Result<Answer, Complaint> {
        let (first, limit) = (
            self.offset.unwrap_or(1),
            self.limit.unwrap_or(DEFAULT_LINES),
        );
        if first == 0 || limit == 0 {
            return Err(Complaint::new("`offset` and `limit` are counted from 1"));
        }
        let path = work.path(&self.path)?;
        let shown = work.show(&path);
        let metadata = work.files().metadata(GetMetadata {
            path: path.clone(),
            follow_symlinks: None,
            sandbox: work.sandbox(),
        });
        let metadata = metadata.await?;
        if metadata.is_directory {
            let what = format!("`{shown}` is a directory: use list_directory");
            return Err(Complaint(what));
        }
        if !metadata.is_file {
            return Err(Complaint(format!("`{shown}` is not a regular file")));
        }
        let mut blocks = blocks(work, path, metadata.size).await?;
        let start = blocks.try_next().await?.unwrap_or_default();
        if let Some(kind) = image(&start) {
            let size = metadata.size;
            if start.len() <= IMAGE_BYTES && start.len() as u64 == size {
                return Ok(Answer::image(&start, kind));
            }
            return Ok(Answer::text(format!(
                "[{kind} file of {size} bytes: {shown}; at most {IMAGE_BYTES} can be shown: make a smaller \
                 copy with a command and read that]"
            )));
        }
        if is_binary(&start) {
            let size = metadata.size;
            return Ok(Answer::text(format!(
                "[binary file of {size} bytes: {shown}]"
            )));
        }
        let numbers = match self.line_numbers {
            true => Numbers::Shown,
            false => Numbers::Hidden,
        };
        let mut window = Window::new(first, limit, numbers);
        window.take(&start);
        while !window.is_full() {
            match blocks.try_next().await? {
                Some(block) => window.take(&block),
                None => break,
            }
        }
        window.into_text().map(Answer::text).map_err(Complaint)
    }
}

/// The content, whole or in parts.
async fn blocks(work: &Work, path: PathUri, size: u64) -> Result<FileStream, Complaint> {
    let read = ReadFile {
        path,
        follow_symlinks: None,
        sandbox: work.sandbox(),
    };
    if size > WHOLE_BYTES {
        return Ok(work.files().read_file_stream(read).await?);
    }
    let whole = work.files().read_file(read).await?;
    Ok(stream::iter([Ok(whole)]).boxed())
}

/// The kind of picture that begins like this.
fn image(start: &Bytes) -> Option<&'static str> {
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
        // A character may be cut where the probe ends.
        Err(error) => error.error_len().is_some() || probe.len() < PROBE_BYTES,
        Ok(_) => false,
    };
    broken || probe.contains(&0)
}

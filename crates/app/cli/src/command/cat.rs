//! `exec-server cat`.
//!
//! Invariant: after a reconnect, output of a file that has changed meanwhile is never spliced
//! together.

use std::{ffi::OsString, io, process::ExitCode};

use bytes::Bytes;
use clap::Args;
use exec_env::filesystem::{ExecutorFileSystem, FileError};
use exec_wire::{fs::OpenMode, limits, path_uri::PathUri, process::OutputStream};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::command::{
    connect::EnvArgs,
    failure::{CommandFailure, FailureKind},
    files::{FileFingerprint, MAX_RETRIES, display_path, metadata_if_exists, open_file},
    operand::{OperandResolver, RemotePath},
    process_session::{output_failure, show_outages, write_output},
};

/// Blocks requested ahead of the printed position.
const READ_AHEAD: usize = 8;

/// Prints files.
#[derive(Args, Clone, Debug)]
pub struct CatCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Numbers the lines.
    #[arg(short, long)]
    pub number: bool,

    /// Files of the environment, of any size. `NAME:PATH` is a file of the environment NAME.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<OsString>,
}

impl CatCommand {
    /// Prints the files in order.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let mut operands = OperandResolver::new(&self.env_args);
        let mut numbers = self.number.then(LineNumbers::default);
        for typed in &self.files {
            let RemotePath { env, path, .. } = operands.resolve(typed).await?;
            let files = env.environment().files;
            let printed = print(&*files, &path, &mut numbers);
            match show_outages(&env.client, printed).await {
                Ok(()) => {}
                Err(PrintError::Output(error)) => return output_failure(&error),
                Err(PrintError::File(failure)) => return Err(failure),
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Why a file was not printed completely.
enum PrintError {
    File(CommandFailure),
    Output(io::Error),
}

impl From<FileError> for PrintError {
    fn from(error: FileError) -> Self {
        Self::File(error.into())
    }
}

async fn print(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
    numbers: &mut Option<LineNumbers>,
) -> Result<(), PrintError> {
    let found = metadata_if_exists(files, path).await?;
    let wrong = |kind, why: &str| {
        PrintError::File(CommandFailure::new(
            kind,
            format!("`{}` {why}", display_path(path)),
        ))
    };
    let before = match found {
        None => return Err(wrong(FailureKind::NotFound, "does not exist")),
        Some(found) if found.is_directory => {
            let failure = format!("`{}` is a directory", display_path(path));
            let failure = CommandFailure::failed(failure);
            return Err(PrintError::File(failure.next("`ls` lists it")));
        }
        Some(found) => FileFingerprint::from(&found),
    };
    let (mut offset, mut retries_left) = (0, MAX_RETRIES);
    loop {
        let start = offset;
        match print_from(files, path, &mut offset, numbers).await {
            Err(PrintError::File(failure)) if failure.kind == FailureKind::Lost => {}
            outcome => return outcome,
        }
        retries_left = match retries_left {
            _ if offset > start => MAX_RETRIES,
            0 => {
                let why = "was truncated: the connection is lost";
                return Err(wrong(FailureKind::Lost, why));
            }
            left => left - 1,
        };
        let now = metadata_if_exists(files, path).await?;
        if now.as_ref().map(FileFingerprint::from) != Some(before) {
            return Err(wrong(
                FailureKind::Failed,
                "changed during a disconnect, and is printed only in part",
            ));
        }
    }
}

/// Prints the file from `offset` on, and advances the offset.
async fn print_from(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
    offset: &mut u64,
    numbers: &mut Option<LineNumbers>,
) -> Result<(), PrintError> {
    let file = open_file(files, path, OpenMode::Read).await?;
    let offsets = (*offset..).step_by(limits::MAX_BLOCK_BYTES);
    let mut blocks = stream::iter(offsets)
        .map(|at| file.read_block(at, limits::MAX_BLOCK_BYTES))
        .buffered(READ_AHEAD);
    while let Some(block) = blocks.try_next().await? {
        let (length, eof) = (block.data.len() as u64, block.eof);
        let data = match numbers {
            Some(numbers) => numbers.add(&block.data),
            None => block.data,
        };
        let written = write_output(OutputStream::Stdout, data).await;
        written.map_err(PrintError::Output)?;
        *offset += length;
        if eof {
            break;
        }
    }
    Ok(())
}

/// Numbers lines like `cat -n`, continuing across files.
#[derive(Debug, Default)]
struct LineNumbers {
    lines: u64,
    /// Whether the last line is still incomplete.
    is_within: bool,
}

impl LineNumbers {
    fn add(&mut self, data: &[u8]) -> Bytes {
        let mut numbered = Vec::with_capacity(data.len() * 2);
        for line in data.split_inclusive(|&byte| byte == b'\n') {
            if !self.is_within {
                self.lines += 1;
                numbered.extend(format!("{:>6}\t", self.lines).into_bytes());
            }
            numbered.extend_from_slice(line);
            self.is_within = !line.ends_with(b"\n");
        }
        numbered.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_numbers_continue_across_blocks_and_files() {
        let mut numbers = LineNumbers::default();
        let blocks: [&[u8]; 4] = [b"a\nb", b"c\n", b"", b"\nd"];
        let text: Vec<u8> = blocks.iter().flat_map(|block| numbers.add(block)).collect();
        assert_eq!(text, b"     1\ta\n     2\tbc\n     3\t\n     4\td");
    }
}

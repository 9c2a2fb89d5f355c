//! `exec-server cat`.
//! Invariant: a file that changes while it is printed is not patched together after a cut.

use std::{ffi::OsString, io, process::ExitCode};

use bytes::Bytes;
use clap::Args;
use exec_env::filesystem::{ExecutorFileSystem, FileError, Open};
use exec_wire::{fs::OpenMode, limits, path_uri::PathUri, process::OutputStream};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    failure::{Failure, FailureKind},
    files::{ATTEMPTS, Identity, file_failure, look, persist, shown},
    place::{Place, Where},
    stream::{Sink, telling, unwritten},
};

/// Blocks that are asked for ahead of what is printed.
const AHEAD: usize = 8;

/// Prints files.
#[derive(Args, Clone, Debug)]
pub struct Cat {
    #[command(flatten)]
    #[doc(hidden)]
    pub place: Where,

    /// Files of the environment; of any size.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<OsString>,
}

impl Cat {
    /// Prints files.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let place = Place::open(&self.place).await?;
        let files = place.environment().files;
        for typed in &self.files {
            let path = place.path(typed).await?;
            match telling(&place.client, print(&*files, &path)).await {
                Ok(()) => {}
                Err(Stopped::Output(error)) => return unwritten(&error),
                Err(Stopped::File(failure)) => return Err(failure),
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Why a file was not printed whole.
enum Stopped {
    File(Failure),
    Output(io::Error),
}

async fn print(files: &dyn ExecutorFileSystem, path: &PathUri) -> Result<(), Stopped> {
    let failed = |error| Stopped::File(file_failure(&error));
    let found = look(files, path).await.map_err(failed)?;
    let wrong =
        |kind, why: &str| Stopped::File(Failure::new(kind, format!("`{}` {why}", shown(path))));
    let before = match found {
        None => return Err(wrong(FailureKind::NotFound, "is not there")),
        Some(found) if found.is_directory => {
            let failure = format!("`{}` is a directory", shown(path));
            let failure = Failure::new(FailureKind::Failed, failure);
            return Err(Stopped::File(failure.next("`ls` lists it")));
        }
        Some(found) => Identity::from(found),
    };
    let (mut offset, mut left) = (0, ATTEMPTS);
    loop {
        let begun = offset;
        match print_from(files, path, &mut offset).await {
            Ok(()) => return Ok(()),
            Err(Trouble::Output(error)) => return Err(Stopped::Output(error)),
            Err(Trouble::Cut) if offset > begun => left = ATTEMPTS,
            Err(Trouble::Cut) if left > 0 => left -= 1,
            Err(Trouble::Cut) => {
                return Err(wrong(
                    FailureKind::Lost,
                    "was cut off: the connection is lost",
                ));
            }
            Err(Trouble::File(error)) => return Err(failed(error)),
        }
        let now = look(files, path).await.map_err(failed)?;
        if now.map(Identity::from) != Some(before) {
            return Err(wrong(
                FailureKind::Failed,
                "changed while the connection was out, and is printed in part",
            ));
        }
    }
}

enum Trouble {
    Cut,
    File(FileError),
    Output(io::Error),
}

impl From<FileError> for Trouble {
    fn from(error: FileError) -> Self {
        if matches!(error, FileError::Disconnected(_)) {
            return Self::Cut;
        }
        Self::File(error)
    }
}

/// Prints what there is from `offset` on, and moves it along.
async fn print_from(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
    offset: &mut u64,
) -> Result<(), Trouble> {
    let open = Open {
        path: path.clone(),
        mode: OpenMode::Read,
        sandbox: None,
    };
    let file = persist(|| files.open(open.clone())).await?;
    let offsets = (*offset..).step_by(limits::MAX_BLOCK_BYTES);
    let mut blocks = stream::iter(offsets)
        .map(|at| file.read_block(at, limits::MAX_BLOCK_BYTES))
        .buffered(AHEAD);
    while let Some(block) = blocks.try_next().await? {
        let (length, eof) = (block.data.len() as u64, block.eof);
        write(block.data).await.map_err(Trouble::Output)?;
        *offset += length;
        if eof {
            break;
        }
    }
    Ok(())
}

async fn write(data: Bytes) -> io::Result<()> {
    match data.is_empty() {
        true => Ok(()),
        false => Sink.write(OutputStream::Stdout, data).await,
    }
}

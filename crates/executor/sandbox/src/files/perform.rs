//! One operation, done by the hand.

use std::os::fd::OwnedFd;

use exec_env::filesystem::FileError;
use exec_fs::{BlockFile, Stop, WholeFile};
use serde::Serialize;

use super::request::Request;

/// What is sent back.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) text: Vec<u8>,
    pub(super) data: Vec<u8>,
    pub(super) file: Option<OwnedFd>,
}

/// Does what is asked. Nobody asks it to stop: who does not wait any more kills this process, and
/// changes run to their end.
pub(super) fn perform(request: Request, data: &[u8]) -> Result<Answer, FileError> {
    let stop = Stop::default();
    match request {
        Request::ReadFile(read) => {
            let file = WholeFile::open(&read)?;
            // One that is made up as it is read says 0, and is read by whom it was opened.
            if file.size() > SMALL_FILE_BYTES {
                return Ok(opened(file.into_file()));
            }
            let data = file.read()?;
            Ok(Answer {
                data,
                ..Answer::default()
            })
        }
        Request::Open { path, mode } => Ok(opened(BlockFile::open(&path, mode)?.into_file())),
        Request::WriteFile(write) => said(&exec_fs::write_file(&write, data)?),
        Request::CreateDirectory(create) => said(&exec_fs::create_directory(&create)?),
        Request::Metadata(get) => said(&exec_fs::metadata(&get)?),
        Request::Canonicalize(request) => said(&exec_fs::canonicalize(&request)?),
        Request::ReadDirectory(read) => said(&exec_fs::read_directory(&read)?),
        Request::Walk(walk) => said(&exec_fs::walk(&walk, &stop)?),
        Request::Remove(remove) => said(&exec_fs::remove(&remove, &stop)?),
        Request::Copy(copy) => said(&exec_fs::copy(&copy, &stop)?),
        Request::Rename(rename) => said(&exec_fs::rename(&rename)?),
        Request::Search(search) => said(&exec_fs::search(&search, &stop)?),
        Request::Find(find) => said(&exec_fs::find(&find, &stop)?),
        Request::Watch { .. } | Request::WatchMissing { .. } => Err(FileError::Host(
            "a watch is not one answer but many".to_owned(),
        )),
    }
}

fn opened(file: OwnedFd) -> Answer {
    Answer {
        file: Some(file),
        ..Answer::default()
    }
}

fn said(result: &impl Serialize) -> Result<Answer, FileError> {
    let text = serde_json::to_vec(result)
        .map_err(|error| FileError::Host(format!("result has no JSON: {error}")))?;
    Ok(Answer {
        text,
        ..Answer::default()
    })
}

/// Content that is sent back: above it, the server reads from what was opened, when it has room.
const SMALL_FILE_BYTES: u64 = 64 << 10;

//! The file `input` of a process: input that was accepted, until the command has received it.
//!
//! Invariant: the position of the open file description is the number of delivered bytes. The
//! kernel advances it in the call that moves the bytes, and the keeper holds the same description.
//! A position behind the accepted input means that the file was emptied meanwhile.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use exec_wire::id::WriteId;
use rustix::{
    fs::{FallocateFlags, OFlags, SeekFrom, fallocate, fcntl_getfl, seek, tell},
    io::{Errno, retry_on_intr},
    pipe::{SpliceFlags, fcntl_getpipe_size, splice},
};

use crate::{
    event_file::EventFile,
    journal_error::JournalError,
    journal_event::JournalEvent,
    limits::{KEEP_INPUT_BYTES, PUNCH_INPUT_BYTES, RESET_INPUT_BYTES},
    private_file::{OpenMode, PrivateFile},
};

const INPUT_FILE: &str = "input";

/// Result of a delivery of input.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Delivery {
    /// Bytes that were moved. None with `remaining` above 0: the pipe is full.
    pub bytes: usize,
    /// Accepted bytes that are not delivered yet.
    pub remaining: u64,
}

/// The file `input`, open for reading and writing.
#[derive(Debug)]
pub(crate) struct InputFile {
    file: PrivateFile,
    /// End of the accepted input.
    accepted: u64,
    /// Position of the description.
    delivered: u64,
    /// End of the range that was given back to the disk.
    released: u64,
}

impl InputFile {
    /// Creates the file in the directory of a record.
    pub(crate) fn create(directory: &OwnedFd) -> Result<Self, JournalError> {
        let file = PrivateFile::open(directory, INPUT_FILE, OpenMode::CreateNew)
            .map_err(JournalError::io("create `input`"))?;
        Ok(Self {
            file,
            accepted: 0,
            delivered: 0,
            released: 0,
        })
    }

    /// Returns whether a record has the file.
    pub(crate) fn exists(directory: &OwnedFd) -> Result<bool, JournalError> {
        PrivateFile::open_existing(directory, INPUT_FILE, OpenMode::Read)
            .map(|file| file.is_some())
            .map_err(JournalError::opening(INPUT_FILE))
    }

    /// Takes over the open file description. `accepted` is the end of the input of which the
    /// events know.
    pub(crate) fn adopt(
        directory: &OwnedFd,
        description: OwnedFd,
        accepted: u64,
    ) -> Result<Self, JournalError> {
        let read = JournalError::io("read the position of `input`");
        let own = PrivateFile::open(directory, INPUT_FILE, OpenMode::Write)
            .map_err(JournalError::opening(INPUT_FILE))?;
        let file = PrivateFile::from_fd(description);
        let (own, found) = (own.stat().map_err(&read)?, file.stat().map_err(&read)?);
        let mode = fcntl_getfl(&file).map_err(|errno| read(errno.into()))? & OFlags::RWMODE;
        if (own.st_dev, own.st_ino) != (found.st_dev, found.st_ino) || mode != OFlags::RDWR {
            return Err(JournalError::ForeignInput);
        }
        let delivered = tell(&file).map_err(|errno| read(errno.into()))?;
        let accepted = accepted.max(delivered);
        if file.len().map_err(&read)? > accepted {
            // Input of which the event was not written: its write was not acknowledged.
            file.truncate(accepted)
                .map_err(JournalError::io("repair `input`"))?;
        }
        Ok(Self {
            file,
            accepted,
            delivered,
            released: 0,
        })
    }

    /// Returns the open file description.
    pub(crate) fn description(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the accepted bytes that are not delivered.
    pub(crate) fn remaining(&self) -> u64 {
        self.accepted - self.delivered
    }

    /// Appends input and the event that accepts it. After an error it is not accepted.
    pub(crate) fn append(
        &mut self,
        id: Option<&WriteId>,
        data: &[u8],
        events: &mut EventFile,
    ) -> Result<(), JournalError> {
        let (offset, len) = (self.accepted, data.len() as u64);
        let event = JournalEvent::Input {
            id: id.cloned(),
            offset,
            len,
        };
        let appended = self
            .file
            .write_at(data, offset)
            .map_err(JournalError::io("write `input`"))
            .and_then(|()| events.append(&event));
        match appended {
            Ok(()) => self.accepted += len,
            // Nothing reads what remains if this fails, too, and the next input overwrites it.
            Err(_) => drop(self.file.truncate(offset)),
        }
        appended
    }

    /// Moves up to `most` accepted bytes into a pipe.
    pub(crate) fn deliver(
        &mut self,
        target: BorrowedFd<'_>,
        most: usize,
        events: &mut EventFile,
    ) -> Result<Delivery, JournalError> {
        let most = most.min(usize::try_from(self.remaining()).unwrap_or(usize::MAX));
        let mut bytes = 0;
        if most > 0 {
            let flags = SpliceFlags::NONBLOCK;
            match retry_on_intr(|| splice(&self.file, None, target, None, most, flags)) {
                Ok(0) => {
                    self.accepted = self.delivered;
                    return Err(JournalError::Damaged {
                        file: INPUT_FILE,
                        reason: "another program shortened it".to_owned(),
                    });
                }
                Ok(count) => bytes = count,
                Err(Errno::AGAIN) => {}
                Err(Errno::PIPE) => return Err(JournalError::ReaderGone),
                Err(errno) => return Err(JournalError::io("deliver input")(errno.into())),
            }
            self.delivered += bytes as u64;
        }
        if self.remaining() > 0 {
            self.release_delivered(target);
        } else if self.delivered > RESET_INPUT_BYTES {
            self.reset(events);
        }
        Ok(Delivery {
            bytes,
            remaining: self.remaining(),
        })
    }

    /// Empties the file after all input was delivered. Each step leaves a state that
    /// [`Self::adopt`] understands, so a failure only postpones the rest.
    ///
    /// The pipe may still refer to pages of the file. Truncation to 0 detaches whole pages and
    /// leaves their content; overwriting them in place would change what the command reads.
    fn reset(&mut self, events: &mut EventFile) {
        let is_reset = self.file.truncate(0).is_ok()
            && events.append(&JournalEvent::InputReset).is_ok()
            && seek(&self.file, SeekFrom::Start(0)).is_ok();
        if is_reset {
            (self.accepted, self.delivered, self.released) = (0, 0, 0);
        }
    }

    /// Gives delivered input back to the disk while the command never catches up. Keeps what the
    /// pipe may still refer to.
    fn release_delivered(&mut self, target: BorrowedFd<'_>) {
        let in_pipe = fcntl_getpipe_size(target).unwrap_or(usize::MAX) as u64;
        let kept = in_pipe.saturating_add(KEEP_INPUT_BYTES);
        let end = self.delivered.saturating_sub(kept);
        if end.saturating_sub(self.released) < PUNCH_INPUT_BYTES {
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file system that cannot do this keeps the input until all is delivered.
        fallocate(&self.file, flags, self.released, end - self.released).ok();
        self.released = end;
    }
}

//! The file `events` of a process: its events in the order in which they happened.
//!
//! Invariant: a reader gets the appended events in order, up to the first damaged frame. Compaction
//! replaces the file by a shorter one with the same meaning.

use std::{os::fd::OwnedFd, sync::Arc};

use crate::{
    event_summary::EventSummary,
    frame_scanner::{FrameScanner, append_frame},
    journal_error::{JournalError, encode_json},
    journal_event::JournalEvent,
    limits::{COMPACT_EVENTS_BYTES, MAX_EVENT_BYTES, MAX_EVENTS_BYTES},
    private_file::{OpenMode, PrivateFile, replace_file},
};

const EVENTS_FILE: &str = "events";
const TEMPORARY_FILE: &str = "events.new";

/// The file `events`, open for appending.
#[derive(Debug)]
pub(crate) struct EventFile {
    directory: Arc<OwnedFd>,
    /// Absent until the first event.
    file: Option<PrivateFile>,
    len: u64,
    /// Length above which the file is compacted.
    compact_above: u64,
}

impl EventFile {
    /// Describes the file of a new record. The first event creates it.
    pub(crate) fn new(directory: Arc<OwnedFd>) -> Self {
        Self {
            directory,
            file: None,
            len: 0,
            compact_above: COMPACT_EVENTS_BYTES,
        }
    }

    /// Opens the file for appending behind its last valid event, and removes what follows.
    pub(crate) fn reopen(directory: Arc<OwnedFd>) -> Result<(Self, EventSummary), JournalError> {
        let mut events = Self::new(directory);
        let opened = PrivateFile::open_existing(&events.directory, EVENTS_FILE, OpenMode::Write);
        let Some(file) = opened.map_err(JournalError::opening(EVENTS_FILE))? else {
            return Ok((events, EventSummary::default()));
        };
        let (summary, len) = summarize(&file)?;
        if file.len().map_err(JournalError::io("read `events`"))? > len {
            file.truncate(len)
                .map_err(JournalError::io("repair `events`"))?;
        }
        events.file = Some(file);
        events.len = len;
        events.compact_above = events.compact_above.max(2 * len);
        Ok((events, summary))
    }

    /// Reads the file of a record, which may have a writer.
    pub(crate) fn load(directory: &OwnedFd) -> Result<EventSummary, JournalError> {
        let opened = PrivateFile::open_existing(directory, EVENTS_FILE, OpenMode::Read);
        match opened.map_err(JournalError::opening(EVENTS_FILE))? {
            Some(file) => summarize(&file).map(|(summary, _)| summary),
            None => Ok(EventSummary::default()),
        }
    }

    /// Appends an event. After an error the file is as before.
    pub(crate) fn append(&mut self, event: &JournalEvent) -> Result<(), JournalError> {
        let mut frame = Vec::with_capacity(256);
        append_event(&mut frame, event)?;
        let len = self.len;
        let file = match &self.file {
            Some(file) => file,
            None => {
                let created = PrivateFile::open(&self.directory, EVENTS_FILE, OpenMode::CreateNew)
                    .map_err(JournalError::io("create `events`"))?;
                self.file.insert(created)
            }
        };
        if let Err(error) = file.write_at(&frame, len) {
            // Readers ignore a part of a frame, and the next event overwrites it.
            file.truncate(len).ok();
            return Err(JournalError::io("write `events`")(error));
        }
        self.len += frame.len() as u64;
        if self.len > self.compact_above {
            self.compact();
        }
        Ok(())
    }

    /// Returns the length.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Compacts the file. A failure only postpones it.
    fn compact(&mut self) {
        match self.try_compact() {
            Ok(()) => self.compact_above = COMPACT_EVENTS_BYTES.max(2 * self.len),
            Err(_) => self.compact_above = self.len + COMPACT_EVENTS_BYTES / 4,
        }
    }

    fn try_compact(&mut self) -> Result<(), JournalError> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let (summary, _) = summarize(file)?;
        let mut content = Vec::new();
        for event in summary.into_events() {
            append_event(&mut content, &event)?;
        }
        let replaced = replace_file(&self.directory, EVENTS_FILE, TEMPORARY_FILE, &content);
        self.file = Some(replaced.map_err(JournalError::io("compact `events`"))?);
        self.len = content.len() as u64;
        Ok(())
    }
}

/// Adds up the valid events of a file. Returns their end, too.
fn summarize(file: &PrivateFile) -> Result<(EventSummary, u64), JournalError> {
    let mut summary = EventSummary::default();
    let mut scanner = FrameScanner::new(file, MAX_EVENT_BYTES, MAX_EVENTS_BYTES);
    let read = JournalError::io("read `events`");
    while let Some(payload) = scanner.next_frame().map_err(&read)? {
        // A newer server may have written kinds that this one does not know.
        if let Ok(event) = serde_json::from_slice(payload) {
            summary.apply(event);
        }
    }
    Ok((summary, scanner.valid_end()))
}

fn append_event(out: &mut Vec<u8>, event: &JournalEvent) -> Result<(), JournalError> {
    let payload = encode_json(event, "encode an event", ("event", MAX_EVENT_BYTES))?;
    append_frame(out, &payload);
    Ok(())
}

#[cfg(test)]
mod tests {
    use exec_wire::id::{OutputSeq, WriteId};

    use super::*;

    fn directory() -> (tempfile::TempDir, Arc<OwnedFd>) {
        let folder = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(folder.path()).unwrap().into();
        (folder, Arc::new(fd))
    }

    #[test]
    fn thousands_of_write_ids_do_not_grow_the_file_for_ever() {
        let (folder, fd) = directory();
        let mut events = EventFile::new(fd.clone());
        let name = "w".repeat(240);
        for number in 0..30_000_u64 {
            let id = Some(WriteId::new(&format!("{name}{number}")).unwrap());
            events
                .append(&JournalEvent::Input {
                    id,
                    offset: number,
                    len: 1,
                })
                .unwrap();
        }
        let length = std::fs::metadata(folder.path().join("events"))
            .unwrap()
            .len();
        assert!(length < 4 << 20, "{length}");
        assert_eq!(length, events.len());
        let summary = EventFile::load(&fd).unwrap();
        assert_eq!(summary.write_ids.len(), 4096);
        assert_eq!(summary.accepted_input, 30_000);
        let newest = WriteId::new(&format!("{name}29999")).unwrap();
        assert_eq!(summary.write_ids.back(), Some(&newest));
    }

    #[test]
    fn compaction_keeps_what_events_add_up_to() {
        let mut summary = EventSummary::default();
        let events = [
            JournalEvent::Started {
                os_pid: 1,
                supervisor_pid: 2,
                spawner_pid: 3,
            },
            JournalEvent::Input {
                id: Some(WriteId::new("a").unwrap()),
                offset: 0,
                len: 9,
            },
            JournalEvent::InputReset,
            JournalEvent::Input {
                id: Some(WriteId::new("b").unwrap()),
                offset: 0,
                len: 4,
            },
            JournalEvent::InputEnd,
            JournalEvent::InputClosed,
            JournalEvent::Resize { rows: 5, cols: 6 },
            JournalEvent::Detached,
            JournalEvent::Evicted {
                segment: 3,
                last_seq: OutputSeq(8),
                bytes: [1, 2, 3],
            },
            JournalEvent::Closed {
                seq: OutputSeq(9),
                at_ms: 10,
            },
        ];
        for event in events {
            summary.apply(event);
        }
        let mut compacted = EventSummary::default();
        for event in summary.clone().into_events() {
            compacted.apply(event);
        }
        assert_eq!(compacted, summary);
    }

    #[test]
    fn unknown_kinds_are_skipped() {
        let (folder, fd) = directory();
        let mut content = Vec::new();
        append_frame(&mut content, br#"{"kind":"teleported","to":"mars"}"#);
        append_frame(&mut content, br#"{"kind":"detached","since":1}"#);
        append_frame(&mut content, b"not json");
        append_event(&mut content, &JournalEvent::InputEnd).unwrap();
        std::fs::write(folder.path().join("events"), content).unwrap();
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(folder.path().join("events"), permissions).unwrap();
        let summary = EventFile::load(&fd).unwrap();
        assert!(summary.detached && summary.input_end);
    }
}

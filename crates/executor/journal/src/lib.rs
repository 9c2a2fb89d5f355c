//! The state directory of a server, and the journals of durable processes in it.
//!
//! Invariant: each byte of output is in a pipe or in a file of the journal, never only in memory,
//! and no page that a reader returns differs from what the process wrote. Everything here blocks
//! on the disk. Elsewhere: the keeper that holds descriptors, and the task that owns a process.

mod event_file;
mod event_summary;
mod frame_scanner;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod index_record;
mod input_file;
mod journal_error;
mod journal_event;
mod journal_head;
mod journal_reader;
mod limits;
mod private_file;
mod process_journal;
mod record_cleanup;
mod record_id;
mod recovered_process;
mod saved_heads;
mod segment;
mod segment_reader;
mod segment_writer;
mod session_record;
mod state_dir;
mod state_layout;

pub use self::{
    event_summary::{ProcessPids, Termination},
    input_file::Delivery,
    journal_error::JournalError,
    journal_event::JournalEvent,
    journal_head::{JournalHead, JournalOwner},
    journal_reader::{JournalReader, TimedChunk},
    limits::{HEAD_BYTES, JournalLimits, MAX_RECORDS},
    process_journal::ProcessJournal,
    record_cleanup::{CleanupOutcome, StateUsage, now_ms},
    record_id::{InvalidRecordId, RecordId},
    recovered_process::RecoveredProcess,
    saved_heads::HeadBytes,
    session_record::SessionRecord,
    state_dir::StateDir,
    state_layout::{StateDirError, StateLayout},
};

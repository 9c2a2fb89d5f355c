//! Writing, recovery, rotation and input of one journal.

mod damage;
mod full_disk;
mod input;
mod rotation;

use std::{
    fs,
    io::Write,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
};

use exec_core::output_log::ExitInfo;
use exec_wire::{
    id::{OutputSeq, ProcessId, WriteId},
    process::{ExitCause, OutputStream, ProcessLimits, ResourceUsage, TerminalSize},
};
use tempfile::TempDir;

use crate::{
    HEAD_BYTES, JournalError, JournalEvent, JournalHead, JournalLimits, JournalOwner,
    JournalReader, ProcessJournal, RecordId, StateDir, TimedChunk,
};

const STREAMS: [OutputStream; 3] = crate::index_record::STREAMS;

/// State directory in a temporary folder.
pub(crate) struct Fixture {
    pub(crate) folder: TempDir,
    pub(crate) state: StateDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with_limits(JournalLimits::default())
    }

    pub(crate) fn with_limits(limits: JournalLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state"), limits).unwrap();
        Self { folder, state }
    }

    /// Limits with segments of 1 MiB.
    pub(crate) fn small(process_bytes: u64) -> Self {
        Self::with_limits(JournalLimits {
            process_bytes,
            ..JournalLimits::default()
        })
    }

    pub(crate) fn create(&self) -> ProcessJournal {
        self.state.create(&head()).unwrap()
    }

    pub(crate) fn file(&self, id: RecordId, name: &str) -> PathBuf {
        self.state
            .path()
            .join("processes")
            .join(id.to_string())
            .join(name)
    }

    pub(crate) fn files(&self, id: RecordId) -> Vec<String> {
        let entries = fs::read_dir(self.file(id, "")).unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<_> = entries.map(|entry| name(entry.unwrap())).collect();
        names.sort();
        names
    }
}

pub(crate) fn head() -> JournalHead {
    JournalHead {
        version: 1,
        process_id: ProcessId::new("build-1").unwrap(),
        argv: vec!["make".to_owned(), "-j".to_owned()],
        cwd: "file:///src".to_owned(),
        tty: false,
        pipe_stdin: true,
        family: "process".to_owned(),
        owner: JournalOwner::Server,
        started_at_ms: 1_700_000_000_000,
        started_at_boot_ms: 0,
        boot_id: "boot".to_owned(),
        sandboxed: true,
        limits: ProcessLimits {
            wall_ms: Some(5),
            ..ProcessLimits::default()
        },
    }
}

/// A non-blocking pipe.
pub(crate) fn pipe() -> (OwnedFd, OwnedFd) {
    use rustix::pipe::{PipeFlags, pipe_with};
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap()
}

/// Both ends of a terminal.
fn terminal() -> (OwnedFd, OwnedFd) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let command = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(name.to_str().unwrap());
    (terminal, command.unwrap().into())
}

/// Moves `data` into the journal as one chunk that is not committed.
pub(crate) fn splice(journal: &mut ProcessJournal, stream: OutputStream, data: &[u8]) {
    let (read, write) = pipe();
    rustix::pipe::fcntl_setpipe_size(&write, 1 << 17).unwrap();
    assert_eq!(rustix::io::write(&write, data).unwrap(), data.len());
    let moved = journal.splice(stream, read.as_fd(), usize::MAX).unwrap();
    assert_eq!(moved, Some(data.len()));
}

/// Writes a chunk.
pub(crate) fn append(journal: &mut ProcessJournal, stream: OutputStream, seq: u64, data: &[u8]) {
    splice(journal, stream, data);
    assert_eq!(journal.commit(OutputSeq(seq), 1000 + seq).unwrap(), data);
}

/// Reads all chunks by pages of `max_bytes`.
pub(crate) fn read_all(reader: &JournalReader, max_bytes: usize) -> Vec<TimedChunk> {
    let mut chunks: Vec<TimedChunk> = Vec::new();
    loop {
        let after = chunks.last().map_or(OutputSeq(0), |last| last.chunk.seq);
        let page = reader.page(after, max_bytes).unwrap();
        if page.is_empty() {
            return chunks;
        }
        chunks.extend(page);
    }
}

/// Returns sequence number, stream and data of all chunks.
pub(crate) fn contents(reader: &JournalReader) -> Vec<(u64, OutputStream, Vec<u8>)> {
    let chunks = read_all(reader, 100_000).into_iter();
    chunks
        .map(|timed| {
            (
                timed.chunk.seq.0,
                timed.chunk.stream,
                timed.chunk.data.to_vec(),
            )
        })
        .collect()
}

/// Returns the bytes of one stream.
pub(crate) fn stream_of(chunks: &[(u64, OutputStream, Vec<u8>)], stream: OutputStream) -> Vec<u8> {
    let own = chunks.iter().filter(|(_, of, _)| *of == stream);
    own.flat_map(|(_, _, data)| data.clone()).collect()
}

/// Returns a number as a place in memory.
fn place(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

/// Bytes that differ for each `seed` and position.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[test]
fn output_is_read_as_it_was_written() {
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    let mut expected = Vec::new();
    for seq in 1..200 {
        let stream = STREAMS[place(seq) % 3];
        let data = pattern(seq, [1, 10, 5000, 65_536][place(seq) % 4]);
        append(&mut journal, stream, seq, &data);
        expected.push((seq, stream, data));
    }
    for max_bytes in [0, 1, 70_000, usize::MAX] {
        let chunks = read_all(&journal.reader(), max_bytes);
        let found: Vec<_> = chunks
            .iter()
            .map(|timed| {
                (
                    timed.chunk.seq.0,
                    timed.chunk.stream,
                    timed.chunk.data.to_vec(),
                )
            })
            .collect();
        assert!(found == expected, "pages of {max_bytes}");
        assert!(
            chunks
                .iter()
                .all(|timed| timed.time_ms == 1000 + timed.chunk.seq.0)
        );
    }
    assert_eq!(journal.reader().oldest().unwrap(), Some(OutputSeq(1)));
    assert_eq!(journal.reader().newest().unwrap(), Some(OutputSeq(199)));
    assert_eq!(journal.first_seq(), OutputSeq(1));
}

#[test]
fn page_starts_after_the_cursor_and_keeps_its_limit() {
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    // Exit and close use numbers, too: these are gaps to the index.
    for seq in [2, 4, 8] {
        append(&mut journal, OutputStream::Stdout, seq, &[b'x'; 100]);
    }
    let reader = journal.reader();
    let page = |after, most| -> Vec<u64> {
        let page = reader.page(OutputSeq(after), most).unwrap();
        page.iter().map(|timed| timed.chunk.seq.0).collect()
    };
    assert_eq!(page(0, 250), [2, 4]);
    assert_eq!(page(0, 200), [2, 4]);
    assert_eq!(page(0, 199), [2]);
    assert_eq!(page(3, 1), [4]);
    assert_eq!(page(4, 1000), [8]);
    assert_eq!(page(8, 1000), [0_u64; 0]);
    assert_eq!(page(u64::MAX, 1000), [0_u64; 0]);
}

#[test]
fn silent_process_has_no_output_files() {
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    let (read, write) = pipe();
    let stream = OutputStream::Stderr;
    assert_eq!(journal.splice(stream, read.as_fd(), 100).unwrap(), None);
    drop(write);
    assert_eq!(journal.splice(stream, read.as_fd(), 100).unwrap(), Some(0));
    journal.record(&JournalEvent::InputEnd).unwrap();
    assert_eq!(fixture.files(journal.id()), ["events", "head.json"]);
}

#[test]
fn splice_tells_an_empty_pipe_from_its_end() {
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    let (read, write) = pipe();
    let stream = OutputStream::Stdout;
    rustix::io::write(&write, b"abcdef").unwrap();
    assert_eq!(journal.splice(stream, read.as_fd(), 4).unwrap(), Some(4));
    assert!(journal.pending());
    assert_eq!(journal.pending_stream(), Some(stream));
    let refused = journal.splice(stream, read.as_fd(), 4).unwrap_err();
    assert!(matches!(refused, JournalError::Uncommitted));
    assert_eq!(journal.reader().page(OutputSeq(0), 10).unwrap(), []);
    assert_eq!(journal.commit(OutputSeq(1), 0).unwrap(), &b"abcd"[..]);
    assert!(matches!(
        journal.commit(OutputSeq(2), 0),
        Err(JournalError::NothingPending)
    ));
    assert_eq!(journal.splice(stream, read.as_fd(), 4).unwrap(), Some(2));
    let refused = journal.commit(OutputSeq(1), 0).unwrap_err();
    assert!(
        matches!(refused, JournalError::NotAscending { .. }),
        "{refused}"
    );
    assert_eq!(journal.commit(OutputSeq(2), 0).unwrap(), &b"ef"[..]);
    assert_eq!(journal.splice(stream, read.as_fd(), 4).unwrap(), None);
    drop(write);
    assert_eq!(journal.splice(stream, read.as_fd(), 4).unwrap(), Some(0));
    assert!(!journal.pending());
}

#[test]
fn terminal_output_passes_a_holding_pipe() {
    use rustix::pipe::{SpliceFlags, splice};
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    let (terminal, command) = terminal();
    rustix::io::write(&command, b"one\ntwo\n").unwrap();
    let (read, write) = pipe();
    let moved = splice(&terminal, None, &write, None, 65_536, SpliceFlags::NONBLOCK).unwrap();
    assert!(moved > 0);
    // The server is killed with bytes in the holding pipe.
    let id = journal.id();
    drop(journal);
    (journal, _) = fixture.state.reopen(id).unwrap();
    assert_eq!(
        journal
            .splice(OutputStream::Pty, read.as_fd(), 65_536)
            .unwrap(),
        Some(moved)
    );
    let data = journal.commit(OutputSeq(1), 0).unwrap();
    assert!(b"one\r\ntwo\r\n".starts_with(&data), "{data:?}");
}

#[test]
fn events_and_totals_are_recovered() {
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    let exit = ExitInfo {
        code: 137,
        signal: Some("SIGKILL"),
        cause: ExitCause::MemoryLimit,
        usage: Some(ResourceUsage {
            wall_ms: 9,
            ..ResourceUsage::default()
        }),
        sandbox_denied: false,
    };
    append(&mut journal, OutputStream::Stdout, 1, b"out");
    append(&mut journal, OutputStream::Stderr, 2, b"error");
    let events = [
        JournalEvent::Started {
            os_pid: 10,
            supervisor_pid: 11,
            spawner_pid: 12,
        },
        JournalEvent::Resize { rows: 3, cols: 4 },
        JournalEvent::Resize { rows: 5, cols: 6 },
        JournalEvent::Terminating {
            cause: ExitCause::WallLimit,
            kill_at_boot_ms: Some(77),
        },
        JournalEvent::Detached,
        JournalEvent::InputEnd,
        JournalEvent::InputClosed,
        JournalEvent::Exited {
            seq: OutputSeq(3),
            exit: exit.clone(),
            at_ms: 50,
        },
        JournalEvent::Closed {
            seq: OutputSeq(4),
            at_ms: 60,
        },
    ];
    for event in &events {
        journal.record(event).unwrap();
    }
    let id = journal.id();
    let (_, inspected) = fixture.state.reader(id).unwrap();
    drop(journal);
    let (journal, recovered) = fixture.state.reopen(id).unwrap();
    assert_eq!(inspected, recovered);
    assert_eq!(recovered.head, head());
    assert_eq!(journal.head(), &head());
    assert_eq!(recovered.started.unwrap().supervisor_pid, 11);
    assert_eq!(recovered.size, Some(TerminalSize { rows: 5, cols: 6 }));
    assert_eq!(recovered.terminating.unwrap().kill_at_boot_ms, Some(77));
    assert_eq!(recovered.exit, Some((OutputSeq(3), exit, 50)));
    assert_eq!(recovered.closed, Some(OutputSeq(4)));
    assert_eq!(recovered.closed_at_ms, Some(60));
    assert!(recovered.detached && recovered.input_end && recovered.input_closed);
    assert!(recovered.is_ended());
    assert_eq!(recovered.next_seq, OutputSeq(5));
    assert_eq!(recovered.first_seq, Some(OutputSeq(1)));
    assert_eq!(recovered.bytes_total, 8);
    assert_eq!(recovered.stream_bytes, [3, 5, 0]);
}

#[test]
fn uncommitted_output_becomes_the_next_chunk() {
    for stream in STREAMS {
        for (before, length) in [(0, 5), (1, 5), (3, 65_536)] {
            let fixture = Fixture::new();
            let mut journal = fixture.create();
            let mut expected = Vec::new();
            for seq in 1..=before {
                let data = pattern(seq, 20);
                append(&mut journal, stream, seq, &data);
                expected.push((seq, stream, data));
            }
            let tail = pattern(99, length);
            splice(&mut journal, stream, &tail);
            expected.push((before + 1, stream, tail));
            let id = journal.id();
            drop(journal);
            // A reader neither shows nor changes it.
            let (reader, inspected) = fixture.state.reader(id).unwrap();
            assert_eq!(contents(&reader).len() as u64, before);
            assert_eq!(inspected.next_seq, OutputSeq(before + 1));
            let (mut journal, recovered) = fixture.state.reopen(id).unwrap();
            assert_eq!(recovered.next_seq, OutputSeq(before + 2));
            assert_eq!(recovered.tail_bytes, length as u64);
            assert_eq!(contents(&journal.reader()), expected);
            let data = pattern(100, 7);
            append(&mut journal, stream, before + 2, &data);
            expected.push((before + 2, stream, data));
            assert_eq!(contents(&reader), expected);
        }
    }
}

#[test]
fn long_tail_is_split_into_chunks() {
    let fixture = Fixture::new();
    let mut journal = fixture.create();
    append(&mut journal, OutputStream::Stdout, 1, b"x");
    let id = journal.id();
    drop(journal);
    let tail = pattern(1, 150_000);
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(fixture.file(id, "0.stdout"))
        .unwrap();
    file.write_all(&tail).unwrap();
    let (journal, recovered) = fixture.state.reopen(id).unwrap();
    assert_eq!(recovered.next_seq, OutputSeq(5));
    let chunks = contents(&journal.reader());
    let lengths: Vec<_> = chunks.iter().map(|(_, _, data)| data.len()).collect();
    assert_eq!(lengths, [1, 65_536, 65_536, 18_928]);
    assert_eq!(stream_of(&chunks, OutputStream::Stdout)[1..], tail);
}

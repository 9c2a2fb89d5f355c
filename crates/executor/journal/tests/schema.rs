//! Compatibility of the state directory: every later version reads what version 1 has written.
//!
//! `EXEC_JOURNAL_WRITE_FIXTURE=1 cargo test -p exec-journal --test schema` writes the fixture again,
//! which only a change before the first release may do.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::{
    fs,
    io::Read,
    os::{fd::AsFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
};

use exec_core::output_log::ExitInfo;
use exec_journal::{
    JournalEvent, JournalHead, JournalLimits, JournalOwner, JournalReader, ProcessJournal,
    ProcessPids, RecordId, RecoveredProcess, SessionRecord, StateDir, Termination,
};
use exec_wire::{
    id::{OutputSeq, ProcessId, SessionId, WriteId},
    process::{ExitCause, OutputStream, ProcessLimits, ResourceUsage, TerminalSize},
};

/// Id of the record with an end.
const ENDED: &str = "00000000000001020304050607080910";
/// Id of the record without one.
const RUNNING: &str = "00000000000111121314151617181920";

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/schema-1")
}

/// Copies a directory, with the modes of a state directory. Git keeps the executable bit only.
fn copy_private(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, name) = entry
            .map(|entry| (entry.path(), entry.file_name()))
            .unwrap();
        let to = to.join(name);
        if path.is_dir() {
            copy_private(&path, &to);
        } else {
            fs::copy(&path, &to).unwrap();
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
}

fn ended_head() -> JournalHead {
    JournalHead {
        version: 1,
        process_id: ProcessId::new("build").unwrap(),
        argv: ["make", "-j2", "ünicode"].map(str::to_owned).to_vec(),
        cwd: "file:///src/a%20b".to_owned(),
        tty: true,
        pipe_stdin: true,
        family: "process".to_owned(),
        owner: JournalOwner::Session(SessionId::new("session-1")),
        principal: None,
        size: None,
        started_at_ms: 1_700_000_000_000,
        started_at_boot_ms: 86_400_000,
        boot_id: "11111111-2222-3333-4444-555555555555".to_owned(),
        sandboxed: true,
        limits: ProcessLimits {
            wall_ms: Some(60_000),
            ..ProcessLimits::default()
        },
    }
}

fn running_head() -> JournalHead {
    JournalHead {
        process_id: ProcessId::new("server").unwrap(),
        argv: vec!["serve".to_owned()],
        tty: false,
        pipe_stdin: false,
        owner: JournalOwner::Server,
        sandboxed: false,
        limits: ProcessLimits::default(),
        ..ended_head()
    }
}

fn exit() -> ExitInfo {
    ExitInfo {
        code: 143,
        signal: Some("SIGTERM"),
        cause: ExitCause::Terminated,
        usage: Some(ResourceUsage {
            wall_ms: 1000,
            user_ms: 20,
            system_ms: 3,
            max_rss_bytes: 4096,
        }),
        sandbox_denied: true,
    }
}

fn session() -> SessionRecord {
    SessionRecord {
        id: SessionId::new("session-1"),
        principal: Some("agent".to_owned()),
        retention: "acknowledged".to_owned(),
        created_at_ms: 1_700_000_000_001,
    }
}

/// Output of the ended process, in sequence order. The exit has number 4.
fn ended_output() -> [(u64, OutputStream, &'static [u8]); 4] {
    [
        (1, OutputStream::Stdout, b"compiling\n"),
        (2, OutputStream::Stderr, b"warning: \xff\n"),
        (3, OutputStream::Pty, b"\x1b[1mdone\x1b[m\r\n"),
        (5, OutputStream::Stdout, b"late\n"),
    ]
}

fn started(first: u32) -> ProcessPids {
    ProcessPids {
        os_pid: first,
        supervisor_pid: first + 1,
        spawner_pid: first + 2,
    }
}

fn event_of(pids: ProcessPids) -> JournalEvent {
    JournalEvent::Started {
        os_pid: pids.os_pid,
        supervisor_pid: pids.supervisor_pid,
        spawner_pid: pids.spawner_pid,
    }
}

fn time_of(seq: u64) -> u64 {
    1_700_000_000_000 + seq
}

fn output(journal: &mut ProcessJournal, seq: u64, stream: OutputStream, data: &[u8]) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    assert_eq!(rustix::io::write(&write, data).unwrap(), data.len());
    drop(write);
    assert_eq!(
        journal.splice(stream, read.as_fd(), 4096).unwrap(),
        Some(data.len())
    );
    assert_eq!(journal.commit(OutputSeq(seq), time_of(seq)).unwrap(), data);
}

fn write_id(text: &str) -> WriteId {
    WriteId::new(text).unwrap()
}

#[test]
fn write_the_fixture_if_asked() {
    if std::env::var_os("EXEC_JOURNAL_WRITE_FIXTURE").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let state = StateDir::open(&path, JournalLimits::default()).unwrap();
    let mut journal = state.create(&ended_head()).unwrap();
    let ended = journal.id();
    journal.record(&event_of(started(100))).unwrap();
    journal
        .append_input(Some(&write_id("first")), b"yes\n")
        .unwrap();
    journal.append_input(None, b"unnamed\n").unwrap();
    let size = JournalEvent::Resize {
        rows: 40,
        cols: 132,
    };
    journal.record(&size).unwrap();
    let all = ended_output();
    for (seq, stream, data) in &all[..3] {
        output(&mut journal, *seq, *stream, data);
    }
    for event in [
        JournalEvent::InputEnd,
        JournalEvent::Detached,
        JournalEvent::Terminating {
            cause: ExitCause::Terminated,
            kill_at_boot_ms: Some(86_500_000),
        },
        JournalEvent::InputClosed,
        JournalEvent::Exited {
            seq: OutputSeq(4),
            exit: exit(),
            at_ms: time_of(4),
        },
    ] {
        journal.record(&event).unwrap();
    }
    let (seq, stream, data) = all[3];
    output(&mut journal, seq, stream, data);
    let closed = JournalEvent::Closed {
        seq: OutputSeq(6),
        at_ms: time_of(6),
    };
    journal.record(&closed).unwrap();
    drop(journal);
    let mut journal = state.create(&running_head()).unwrap();
    let running = journal.id();
    journal.record(&event_of(started(200))).unwrap();
    output(&mut journal, 1, OutputStream::Stdout, b"listening\n");
    drop(journal);
    state.save_session(&session()).unwrap();
    drop(state);
    for (id, name) in [(ended, ENDED), (running, RUNNING)] {
        let processes = path.join("processes");
        fs::rename(processes.join(id.to_string()), processes.join(name)).unwrap();
    }
    if fixture().exists() {
        fs::remove_dir_all(fixture()).unwrap();
    }
    fs::create_dir_all(fixture().parent().unwrap()).unwrap();
    copy_private(&path, &fixture());
}

/// Asserts what the record with an end says.
fn check_ended(recovered: &RecoveredProcess, reader: &JournalReader) {
    let expected = RecoveredProcess {
        head: ended_head(),
        started: Some(started(100)),
        next_seq: OutputSeq(7),
        first_seq: Some(OutputSeq(1)),
        exit: Some((OutputSeq(4), exit(), time_of(4))),
        closed: Some(OutputSeq(6)),
        closed_at_ms: Some(time_of(6)),
        write_ids: vec![write_id("first")],
        input_end: true,
        input_closed: true,
        size: Some(TerminalSize {
            rows: 40,
            cols: 132,
        }),
        terminating: Some(Termination {
            cause: ExitCause::Terminated,
            kill_at_boot_ms: Some(86_500_000),
        }),
        detached: true,
        bytes_total: 39,
        stream_bytes: [15, 11, 13],
        tail_bytes: 0,
    };
    assert_eq!(*recovered, expected);
    assert!(recovered.is_ended());
    check_output(reader, &ended_output());
    let head = |stream| reader.head_bytes(stream, 1024).unwrap().data;
    assert_eq!(head(OutputStream::Stdout), b"compiling\nlate\n");
    assert_eq!(reader.tail_bytes(OutputStream::Pty, 4).unwrap(), b"[m\r\n");
}

/// Asserts what the record without an end says.
fn check_running(recovered: &RecoveredProcess, reader: &JournalReader) {
    let expected = RecoveredProcess {
        head: running_head(),
        started: Some(started(200)),
        next_seq: OutputSeq(2),
        first_seq: Some(OutputSeq(1)),
        exit: None,
        closed: None,
        closed_at_ms: None,
        write_ids: Vec::new(),
        input_end: false,
        input_closed: false,
        size: None,
        terminating: None,
        detached: false,
        bytes_total: 10,
        stream_bytes: [10, 0, 0],
        tail_bytes: 0,
    };
    assert_eq!(*recovered, expected);
    assert!(!recovered.is_ended());
    check_output(reader, &[(1, OutputStream::Stdout, b"listening\n")]);
}

fn check_output(reader: &JournalReader, expected: &[(u64, OutputStream, &[u8])]) {
    let page = reader.page(OutputSeq(0), usize::MAX).unwrap();
    let read: Vec<_> = page
        .iter()
        .map(|timed| {
            assert_eq!(timed.time_ms, time_of(timed.chunk.seq.0));
            (timed.chunk.seq.0, timed.chunk.stream, &*timed.chunk.data)
        })
        .collect();
    assert_eq!(read, expected);
}

#[test]
fn schema_1_is_read_without_its_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    copy_private(&fixture(), &path);
    let state = StateDir::open_read_only(&path).unwrap();
    let ids: [RecordId; 2] = [ENDED, RUNNING].map(|id| id.parse().unwrap());
    assert_eq!(state.records().unwrap(), ids);
    assert_eq!(state.sessions().unwrap(), [session()]);
    assert_eq!(state.usage().unwrap().records, 2);
    let (reader, recovered) = state.reader(ids[0]).unwrap();
    check_ended(&recovered, &reader);
    let (reader, recovered) = state.reader(ids[1]).unwrap();
    check_running(&recovered, &reader);
}

#[test]
fn schema_1_is_continued_by_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    copy_private(&fixture(), &path);
    let state = StateDir::open(&path, JournalLimits::default()).unwrap();
    let ids: [RecordId; 2] = [ENDED, RUNNING].map(|id| id.parse().unwrap());
    assert_eq!(state.records().unwrap(), ids);
    assert_eq!(state.sessions().unwrap(), [session()]);
    let (journal, recovered) = state.reopen(ids[0]).unwrap();
    check_ended(&recovered, &journal.reader());
    let (mut journal, recovered) = state.reopen(ids[1]).unwrap();
    check_running(&recovered, &journal.reader());
    // It goes on where it stopped.
    output(&mut journal, 2, OutputStream::Stderr, b"more\n");
    let exited = JournalEvent::Exited {
        seq: OutputSeq(3),
        exit: exit(),
        at_ms: time_of(3),
    };
    journal.record(&exited).unwrap();
    drop(journal);
    let (reader, recovered) = state.reader(ids[1]).unwrap();
    assert_eq!(recovered.exit, Some((OutputSeq(3), exit(), time_of(3))));
    let listening: &[u8] = b"listening\n";
    check_output(
        &reader,
        &[
            (1, OutputStream::Stdout, listening),
            (2, OutputStream::Stderr, b"more\n"),
        ],
    );
    // New records do not take the place of old ones.
    let third = state.create(&running_head()).unwrap().id();
    assert_eq!(state.records().unwrap(), [ids[0], ids[1], third]);
    // The session is replaced and removed like a new one.
    state.save_session(&session()).unwrap();
    state.remove_session(&session().id).unwrap();
    assert_eq!(state.sessions().unwrap(), []);
}

#[test]
fn schema_1_keeps_undelivered_input() {
    let record = fixture().join("processes").join(ENDED);
    let mut input = Vec::new();
    let mut file = fs::File::open(record.join("input")).unwrap();
    file.read_to_end(&mut input).unwrap();
    assert_eq!(input, b"yes\nunnamed\n");
    assert_eq!(fs::read(fixture().join("schema")).unwrap(), b"1\n");
}

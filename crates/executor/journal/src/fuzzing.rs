//! Entry point of the fuzz target `journal`: any bytes as the files of a record.
//!
//! Checks that the record opens, for reading and for writing, to chunks that are in its data files,
//! that a writer keeps what a reader sees, and that it continues behind it. The target and its
//! corpus are in `fuzz/`.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use exec_wire::{
    id::{OutputSeq, ProcessId},
    process::{OutputStream, ProcessLimits},
};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::{
    JournalError, JournalHead, JournalLimits, JournalOwner, JournalReader, ProcessJournal,
    RecordId, TimedChunk,
    frame_scanner::append_frame,
    index_record::{INDEX_HEADER, RECORD_BYTES, STREAMS},
};

/// Sections: index, next index, stdout, stderr, events, heads. The rest is `head.json`.
const SECTIONS: usize = 6;
/// Maximum pages of one run.
const MAX_PAGES: usize = 1000;

/// Runs a program: a byte with flags, a length of two bytes for each section, and the sections.
/// Flag 1 computes the checksums of the indexes, flag 2 those of events and heads, and flag 4 takes
/// `head.json` from the program.
///
/// # Panics
/// Panics when the journal breaks an invariant.
pub fn journal(program: &[u8]) {
    if let Some(record) = Record::decode(program)
        && let Ok(folder) = Folder::create()
        && record.write(&folder.path).is_ok()
    {
        check(&folder.path, &record);
    }
}

/// Content of the files of a record.
struct Record {
    indexes: [Vec<u8>; 2],
    data: [Vec<u8>; 2],
    events: Vec<u8>,
    heads: Vec<u8>,
    head: Vec<u8>,
}

impl Record {
    fn decode(program: &[u8]) -> Option<Self> {
        let (flags, rest) = program.split_first()?;
        let (lengths, mut rest) = rest.split_at_checked(2 * SECTIONS)?;
        let mut sections = [&[][..]; SECTIONS];
        for (section, length) in sections.iter_mut().zip(lengths.chunks_exact(2)) {
            let length = usize::from(length[0]) | usize::from(length[1]) << 8;
            (*section, rest) = rest.split_at(length.min(rest.len()));
        }
        let [first, second, stdout, stderr, events, heads] = sections;
        let data = [stdout.to_vec(), stderr.to_vec()];
        let index = |bytes: &[u8]| {
            if flags & 1 == 0 {
                bytes.to_vec()
            } else {
                with_checksums(bytes, &data)
            }
        };
        let frames = |bytes: &[u8]| {
            if flags & 2 == 0 {
                bytes.to_vec()
            } else {
                framed(bytes)
            }
        };
        Some(Self {
            indexes: [index(first), index(second)],
            events: frames(events),
            heads: frames(heads),
            head: if flags & 4 == 0 {
                valid_head()
            } else {
                rest.to_vec()
            },
            data,
        })
    }

    fn write(&self, folder: &Path) -> io::Result<()> {
        let files = [
            ("0.index", &self.indexes[0]),
            ("1.index", &self.indexes[1]),
            ("0.stdout", &self.data[0]),
            ("0.stderr", &self.data[1]),
            ("1.stdout", &self.data[0]),
            ("1.stderr", &self.data[1]),
            ("events", &self.events),
            ("heads", &self.heads),
            ("head.json", &self.head),
        ];
        for (name, content) in files {
            // An empty section leaves its file out.
            if !content.is_empty() {
                let mut options = fs::OpenOptions::new();
                let mut file = options
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(folder.join(name))?;
                io::Write::write_all(&mut file, content)?;
            }
        }
        Ok(())
    }
}

/// Returns an index with valid header and checksums.
fn with_checksums(bytes: &[u8], data: &[Vec<u8>; 2]) -> Vec<u8> {
    let mut index = INDEX_HEADER.to_vec();
    for bytes in bytes.chunks(RECORD_BYTES) {
        let mut record = [0; RECORD_BYTES];
        record[..bytes.len()].copy_from_slice(bytes);
        let number = |range: std::ops::Range<usize>| {
            record[range]
                .iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
        };
        let (offset, length) = (number(16..20), number(24..28));
        let described = data
            .get(usize::from(record[28]))
            .and_then(|data| data.get(offset..offset.checked_add(length)?));
        if let Some(described) = described {
            record[32..36].copy_from_slice(&crc32fast::hash(described).to_le_bytes());
        }
        let checksum = crc32fast::hash(&record[..36]);
        record[36..].copy_from_slice(&checksum.to_le_bytes());
        index.extend_from_slice(&record);
    }
    index
}

/// Returns the lines of `bytes` as frames.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        append_frame(&mut frames, line);
    }
    frames
}

fn valid_head() -> Vec<u8> {
    let head = ProcessId::new("fuzz").ok().and_then(|process_id| {
        let head = JournalHead {
            version: 1,
            process_id,
            argv: Vec::new(),
            cwd: String::new(),
            tty: false,
            pipe_stdin: false,
            family: String::new(),
            owner: JournalOwner::Server,
            started_at_ms: 0,
            started_at_boot_ms: 0,
            boot_id: String::new(),
            sandboxed: false,
            limits: ProcessLimits::default(),
        };
        serde_json::to_vec(&head).ok()
    });
    head.unwrap_or_default()
}

fn check(path: &Path, record: &Record) {
    let Ok(directory) = open(path) else { return };
    let Ok(inspected) = ProcessJournal::inspect(&directory) else {
        // Only the head can make a record unreadable.
        assert!(serde_json::from_slice::<JournalHead>(&record.head).is_err());
        return;
    };
    let reader = JournalReader::new(directory.into());
    let before = read(&reader);
    for timed in &before {
        let data = record.data.get(timed.chunk.stream as usize);
        let is_written = |data: &Vec<u8>| contains(data, &timed.chunk.data);
        assert!(data.is_some_and(is_written), "{timed:?} was not written");
    }
    for stream in STREAMS {
        let head = reader.head_bytes(stream, 1000).map(|head| head.data.len());
        assert!(matches!(head, Ok(0..=1000)), "{head:?}");
        let tail = reader.tail_bytes(stream, 1000).map(|tail| tail.len());
        assert!(matches!(tail, Ok(0..=1000)), "{tail:?}");
    }
    let Ok(directory) = open(path) else { return };
    let limits = JournalLimits::default();
    let id = RecordId::from_bytes([0; 16]);
    let (mut journal, recovered) = match ProcessJournal::recover(id, directory, limits, None) {
        Ok(opened) => opened,
        Err(error) => panic!("{error:?}"),
    };
    assert!(recovered.next_seq >= inspected.next_seq);
    let after = read(&journal.reader());
    // Only the end of an interrupted eviction removes chunks.
    let is_retained = |timed: &TimedChunk| {
        recovered
            .first_seq
            .is_some_and(|first| timed.chunk.seq >= first)
    };
    let mut retained = before.iter().filter(|timed| is_retained(timed));
    assert!(
        after
            .iter()
            .zip(&mut retained)
            .all(|(found, known)| found == known)
    );
    assert_eq!(retained.next(), None);
    assert!(
        after
            .last()
            .is_none_or(|last| last.chunk.seq < recovered.next_seq)
    );
    // The highest number cannot be followed.
    if !journal.pending() && recovered.next_seq.0 < u64::MAX - 1 {
        append(&mut journal, recovered.next_seq);
    }
}

/// Writes a chunk, which must be the last one.
fn append(journal: &mut ProcessJournal, seq: OutputSeq) {
    let Ok((read_end, write_end)) = pipe_with(PipeFlags::CLOEXEC) else {
        return;
    };
    let written = rustix::io::write(write_end, b"continued").is_ok();
    match journal.splice(OutputStream::Stdout, read_end.as_fd(), 100) {
        Ok(moved) => assert_eq!(moved, written.then_some(9)),
        // An index may claim data behind the largest offset of the file system.
        Err(error) => return assert!(error.is_full(), "{error:?}"),
    }
    let committed = journal.commit(seq, 0);
    assert!(committed.is_ok_and(|data| data == b"continued"[..]));
    let last = journal.reader().page(OutputSeq(seq.0 - 1), 0);
    let last = last.unwrap_or_default();
    assert!(
        last.first()
            .is_some_and(|timed| timed.chunk.data == b"continued"[..]),
        "{last:?}"
    );
}

fn read(reader: &JournalReader) -> Vec<TimedChunk> {
    let mut chunks: Vec<TimedChunk> = Vec::new();
    for _ in 0..MAX_PAGES {
        let after = chunks.last().map_or(OutputSeq(0), |last| last.chunk.seq);
        let page: Result<_, JournalError> = reader.page(after, 4000);
        let page = page.unwrap_or_default();
        if page.is_empty() {
            break;
        }
        assert!(page[0].chunk.seq > after);
        assert!(page.is_sorted_by(|one, next| one.chunk.seq < next.chunk.seq));
        chunks.extend(page);
    }
    chunks
}

fn contains(data: &[u8], part: &[u8]) -> bool {
    data.windows(part.len()).any(|window| window == part)
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    fs::File::open(path).map(OwnedFd::from)
}

/// Folder that is removed when it is dropped.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn create() -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("exec-journal-fuzz-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn corpus_is_replayed() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/journal");
        let files: Vec<_> = fs::read_dir(corpus).unwrap().map(Result::unwrap).collect();
        assert!(files.len() > 12, "corpus is missing");
        for file in files {
            println!("{}", file.path().display());
            journal(&fs::read(file.path()).unwrap());
        }
    }

    proptest! {
        #[test]
        fn any_files_are_read_without_a_panic(
            flags in 0..8_u8,
            sections in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), SECTIONS),
        ) {
            let mut program = vec![flags];
            for section in &sections {
                program.extend(u16::try_from(section.len()).unwrap().to_le_bytes());
            }
            program.extend(sections.concat());
            journal(&program);
        }
    }
}

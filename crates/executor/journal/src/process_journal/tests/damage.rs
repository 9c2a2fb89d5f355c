//! Files that are cut or changed: what is returned is right, and nothing panics.

use std::os::unix::fs::{PermissionsExt, symlink};

use proptest::prelude::*;

use super::*;

type Contents = Vec<(u64, OutputStream, Vec<u8>)>;

/// Record with 30 chunks, events and input, and a copy of its files.
struct Original {
    fixture: Fixture,
    id: RecordId,
    expected: Contents,
    files: Vec<(String, Vec<u8>)>,
}

impl Original {
    fn new() -> Self {
        let fixture = Fixture::new();
        let mut journal = fixture.create();
        let started = JournalEvent::Started {
            os_pid: 1,
            supervisor_pid: 2,
            spawner_pid: 3,
        };
        journal.record(&started).unwrap();
        let mut expected = Vec::new();
        for seq in 1..=30 {
            let stream = STREAMS[place(seq) % 3];
            let data = pattern(seq, 1 + place(seq) * 7);
            append(&mut journal, stream, seq, &data);
            let id = WriteId::new(&format!("w{seq}")).unwrap();
            journal.append_input(Some(&id), &data).unwrap();
            expected.push((seq, stream, data));
        }
        journal.record(&JournalEvent::InputEnd).unwrap();
        let id = journal.id();
        let names = fixture.files(id).into_iter().filter(|name| name != "input");
        let read = |name: String| (name.clone(), fs::read(fixture.file(id, &name)).unwrap());
        let files = names.map(read).collect();
        Self {
            fixture,
            id,
            expected,
            files,
        }
    }

    /// Restores all files but one, which gets other content.
    fn restore_with(&self, name: &str, content: &[u8]) {
        for other in self.fixture.files(self.id) {
            if other != "input" {
                fs::remove_file(self.fixture.file(self.id, &other)).unwrap();
            }
        }
        for (other, original) in &self.files {
            let content = if other == name { content } else { original };
            let path = self.fixture.file(self.id, other);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }

    /// Opens the record for reading and for writing, and returns what each shows. Only a damaged
    /// head is an error.
    fn check(&self, name: &str) -> Option<(Contents, Contents)> {
        let read = self.fixture.state.reader(self.id);
        if name == "head.json" && read.is_err() {
            return None;
        }
        let (reader, inspected) = read.unwrap();
        let before = contents(&reader);
        let mut rest = self.expected.iter();
        assert!(
            before.iter().all(|chunk| rest.any(|known| known == chunk)),
            "{name}"
        );
        for (place, id) in inspected.write_ids.iter().enumerate() {
            assert_eq!(*id, WriteId::new(&format!("w{}", place + 1)).unwrap());
        }
        assert!(!inspected.input_end || inspected.write_ids.len() == 30);
        let (mut journal, recovered) = self.fixture.state.reopen(self.id).unwrap();
        let after = contents(&journal.reader());
        assert!(after.starts_with(&before), "{name}");
        let next = recovered.next_seq;
        assert!(next.0 > after.last().map_or(0, |chunk| chunk.0));
        append(&mut journal, OutputStream::Stderr, next.0, b"continued");
        let last = contents(&journal.reader()).pop().unwrap();
        assert_eq!((last.0, last.2.as_slice()), (next.0, &b"continued"[..]));
        let again = self.fixture.state.reopen(self.id).unwrap().1;
        assert_eq!((again.next_seq, again.tail_bytes), (next.next(), 0));
        Some((before, after))
    }
}

#[test]
fn file_that_is_cut_anywhere_opens_to_its_last_whole_record() {
    let original = Original::new();
    let mut cuts = 0;
    for (name, whole) in &original.files {
        let step = (whole.len() / 170).max(1);
        for length in (0..whole.len()).step_by(step) {
            cuts += 1;
            original.restore_with(name, &whole[..length]);
            let Some((before, after)) = original.check(name) else {
                continue;
            };
            if name == "0.index" {
                let records = length.saturating_sub(16) / 40;
                assert!(before == original.expected[..records]);
                // Only how the rest was divided into chunks is lost.
                for stream in STREAMS {
                    let all = stream_of(&original.expected, stream);
                    assert!(stream_of(&after, stream) == all, "{stream:?} at {length}");
                }
            }
        }
    }
    assert!(cuts > 900, "{cuts}");
}

/// Change of a file.
#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    Zero(usize, usize),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<usize>;
    prop_oneof![
        (at(), 1..=255_u8).prop_map(|(at, mask)| Damage::Flip(at, mask)),
        (at(), 1..200_usize).prop_map(|(at, count)| Damage::Zero(at, count)),
        (at(), prop::collection::vec(any::<u8>(), 1..100))
            .prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (at(), 1..200_usize).prop_map(|(at, count)| Damage::Remove(at, count)),
    ]
}

impl Damage {
    fn apply(&self, content: &mut Vec<u8>) {
        let length = content.len();
        let start = |at: &usize| at % (length + 1);
        let range = |at: &usize, count: &usize| start(at)..(start(at) + count).min(length);
        match self {
            Self::Flip(at, mask) => content[range(at, &1)].iter_mut().for_each(|b| *b ^= mask),
            Self::Zero(at, count) => content[range(at, count)].fill(0),
            Self::Insert(at, bytes) => drop(content.splice(start(at)..start(at), bytes.clone())),
            Self::Remove(at, count) => drop(content.drain(range(at, count))),
        }
    }
}

#[test]
fn damaged_files_never_yield_wrong_output() {
    let original = Original::new();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(600)
    });
    let cases = (
        0..original.files.len(),
        prop::collection::vec(damage(), 1..4),
    );
    let ran = runner.run(&cases, |(place, damages)| {
        let (name, whole) = &original.files[place];
        let mut content = whole.clone();
        for damage in &damages {
            damage.apply(&mut content);
        }
        original.restore_with(name, &content);
        original.check(name);
        Ok(())
    });
    ran.unwrap();
}

#[test]
fn damage_in_the_middle_of_an_index_is_a_gap() {
    let original = Original::new();
    let (_, index) = original
        .files
        .iter()
        .find(|(name, _)| name == "0.index")
        .unwrap();
    let mut index = index.clone();
    index[16 + 10 * 40] ^= 1;
    original.restore_with("0.index", &index);
    let (mut journal, recovered) = original.fixture.state.reopen(original.id).unwrap();
    assert_eq!(recovered.next_seq, OutputSeq(31));
    assert_eq!(recovered.tail_bytes, 0);
    append(&mut journal, OutputStream::Stdout, 31, b"next");
    let found = contents(&journal.reader());
    assert!(found[..10] == original.expected[..10]);
    assert!(!found.iter().any(|chunk| chunk.0 == 11));
    assert_eq!(found.last().unwrap().2, b"next");
}

#[test]
fn foreign_and_open_files_are_refused() {
    let original = Original::new();
    let state = &original.fixture.state;
    for (name, _) in &original.files {
        let path = original.fixture.file(original.id, name);
        let read = || {
            let (reader, _) = state.reader(original.id)?;
            reader.page(OutputSeq(0), 1 << 20)
        };
        let assert_refused = || {
            let refused = read();
            assert!(
                matches!(refused, Err(JournalError::NotPrivate(_))),
                "{name}: {refused:?}"
            );
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_refused();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let moved = original.fixture.folder.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        symlink(&moved, &path).unwrap();
        assert_refused();
        fs::remove_file(&path).unwrap();
        fs::rename(&moved, &path).unwrap();
        read().unwrap();
    }
}

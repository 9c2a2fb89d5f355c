use bytes::Bytes;
use exec_wire::{
    id::OutputSeq,
    process::{ExitCause, OutputStream},
};
use proptest::prelude::*;

use super::*;

const OUT: OutputStream = OutputStream::Stdout;
const ERR: OutputStream = OutputStream::Stderr;

fn log(bytes: usize) -> OutputLog {
    OutputLog::new(RetentionLimits {
        bytes,
        chunks: 50_000,
    })
}

fn exit(code: i32) -> ExitInfo {
    ExitInfo {
        code,
        signal: None,
        cause: ExitCause::Exit,
        usage: None,
        sandbox_denied: false,
    }
}

fn append(log: &mut OutputLog, text: &str) -> OutputSeq {
    log.append(OUT, Bytes::copy_from_slice(text.as_bytes()))
        .unwrap()
}

fn chunk_texts(page: &LogPage) -> Vec<String> {
    page.chunks
        .iter()
        .map(|c| String::from_utf8(c.data.to_vec()).unwrap())
        .collect()
}

#[test]
fn output_exit_and_close_share_one_sequence() {
    let mut log = log(100);
    assert_eq!(append(&mut log, "a"), OutputSeq(1));
    assert_eq!(log.record_exit(exit(3)), Some(OutputSeq(2)));
    assert_eq!(append(&mut log, "late"), OutputSeq(3));
    assert_eq!(log.record_close(), Some(OutputSeq(4)));
    assert_eq!(log.append(OUT, Bytes::new()), None);
    assert_eq!(log.record_close(), None);
    assert_eq!(log.record_exit(exit(4)), None);
    assert_eq!(log.exit(), Some(&exit(3)));
}

#[test]
fn skipped_sequence_numbers_are_a_gap_for_every_reader() {
    let mut log = log(100);
    append(&mut log, "a");
    log.skip_to(OutputSeq(5));
    log.skip_to(OutputSeq(3));
    assert_eq!(append(&mut log, "b"), OutputSeq(5));
    let next = log.event_after(OutputSeq(1)).map(|event| event.seq());
    assert_eq!(next, Some(OutputSeq(5)));
    assert_eq!(chunk_texts(&log.page(OutputSeq(1), None)), ["b"]);
    assert_eq!(log.next_seq(), OutputSeq(6));
}

#[test]
fn close_is_recorded_only_after_the_exit() {
    let mut log = log(100);
    assert_eq!(log.record_close(), None);
    log.record_exit(exit(0));
    assert_eq!(log.record_close(), Some(OutputSeq(2)));
}

#[test]
fn page_returns_at_least_one_whole_chunk() {
    let mut log = log(100);
    append(&mut log, "aaaa");
    append(&mut log, "bb");
    append(&mut log, "cc");
    for budget in [0, 1, 4, 5] {
        let page = log.page(OutputSeq(0), Some(budget));
        assert_eq!(
            (chunk_texts(&page), page.next_seq),
            (vec!["aaaa".into()], OutputSeq(2))
        );
    }
    assert_eq!(
        chunk_texts(&log.page(OutputSeq(0), Some(6))),
        ["aaaa", "bb"]
    );
    assert_eq!(
        chunk_texts(&log.page(OutputSeq(0), Some(7))),
        ["aaaa", "bb"]
    );
    assert_eq!(chunk_texts(&log.page(OutputSeq(1), None)), ["bb", "cc"]);
}

#[test]
fn next_seq_skips_the_exit_only_without_a_byte_limit() {
    let mut log = log(100);
    append(&mut log, "a");
    log.record_exit(exit(0));
    log.record_close();
    assert_eq!(log.page(OutputSeq(0), None).next_seq, OutputSeq(4));
    assert_eq!(log.page(OutputSeq(0), Some(10)).next_seq, OutputSeq(2));
    assert_eq!(log.page(OutputSeq(1), Some(10)).next_seq, OutputSeq(4));
}

#[test]
fn oldest_chunks_are_evicted_first() {
    let mut log = log(10);
    for text in ["aaaa", "bbbb", "cccc"] {
        append(&mut log, text);
    }
    assert_eq!(chunk_texts(&log.page(OutputSeq(0), None)), ["bbbb", "cccc"]);
    let mut log = OutputLog::new(RetentionLimits {
        bytes: 100,
        chunks: 2,
    });
    for text in ["a", "b", "c"] {
        append(&mut log, text);
    }
    assert_eq!(chunk_texts(&log.page(OutputSeq(0), None)), ["b", "c"]);
}

#[test]
fn output_after_the_retain_cursor_is_not_evicted() {
    let mut log = log(4);
    log.retain_after(Some(OutputSeq(1)));
    for text in ["aaaa", "bbbb", "cccc"] {
        append(&mut log, text);
    }
    assert_eq!(chunk_texts(&log.page(OutputSeq(0), None)), ["bbbb", "cccc"]);
    assert_eq!(log.bytes_after(OutputSeq(2)), 4);
    log.retain_after(Some(OutputSeq(3)));
    assert_eq!(chunk_texts(&log.page(OutputSeq(0), None)), ["cccc"]);
}

#[test]
fn waiting_reader_sees_an_exit_once() {
    let mut log = log(10);
    assert!(!log.is_readable_after(OutputSeq(0)));
    log.record_exit(exit(0));
    assert!(log.is_readable_after(OutputSeq(0)));
    assert!(
        !log.is_readable_after(OutputSeq(1)),
        "the exit was seen and the output is open"
    );
    log.record_close();
    assert!(log.is_readable_after(OutputSeq(2)));
}

#[test]
fn snapshot_keeps_head_and_tail_of_each_stream() {
    let mut log = log(16); // heads of two bytes
    append(&mut log, "0123");
    log.append(ERR, Bytes::from_static(b"E")).unwrap();
    for text in ["4567", "89ab", "cdef", "ghij"] {
        append(&mut log, text);
    }
    let snapshot = log.snapshot();
    assert_eq!(snapshot.stdout.data, b"01456789abcdefghij");
    assert_eq!(snapshot.stdout.omitted, 2);
    assert_eq!(
        (&snapshot.stderr.data[..], snapshot.stderr.omitted),
        (&b"E"[..], 0)
    );
}

proptest! {
    /// Reading event by event returns the same events as paging, regardless of eviction.
    #[test]
    fn following_and_paging_return_the_same_events(
        cap in 1usize..64,
        writes in prop::collection::vec((any::<bool>(), 0usize..24), 0..40),
        exit_at in 0usize..40,
    ) {
        let mut log = log(cap);
        let mut seen = Vec::new();
        let mut cursor = OutputSeq(0);
        for (index, (out, length)) in writes.iter().enumerate() {
            if index == exit_at {
                log.record_exit(exit(0));
            }
            let stream = if *out { OUT } else { ERR };
            log.append(stream, Bytes::from(vec![b'x'; *length]));
            if index % 3 == 0 {
                while let Some(event) = log.event_after(cursor) {
                    prop_assert!(event.seq() > cursor);
                    cursor = event.seq();
                    seen.push(event);
                }
            }
        }
        log.record_exit(exit(0));
        log.record_close();
        while let Some(event) = log.event_after(cursor) {
            cursor = event.seq();
            seen.push(event);
        }
        prop_assert!(matches!(seen.last(), Some(LogEvent::Closed(_))));
        prop_assert_eq!(cursor.next(), log.next_seq());
        prop_assert_eq!(seen.iter().filter(|e| matches!(e, LogEvent::Exited(..))).count(), 1);
    }

    /// Pages of any size return exactly the retained chunks, each once.
    #[test]
    fn consecutive_pages_return_every_retained_chunk_once(
        cap in 1usize..200,
        budget in prop::option::of(0usize..40),
        writes in prop::collection::vec(0usize..24, 0..40),
    ) {
        let mut log = log(cap);
        for length in writes {
            log.append(OUT, Bytes::from(vec![b'x'; length]));
        }
        log.record_exit(exit(0));
        log.record_close();
        let retained = log.page(OutputSeq(0), None).chunks;
        let mut joined = Vec::new();
        let mut after = OutputSeq(0);
        loop {
            let page = log.page(after, budget);
            prop_assert!(page.next_seq.0 > after.0);
            after = OutputSeq(page.next_seq.0 - 1);
            if page.chunks.is_empty() { break; }
            joined.extend(page.chunks);
        }
        prop_assert_eq!(joined, retained);
    }

    /// A snapshot is a prefix and a suffix of the output, and counts the bytes between.
    #[test]
    fn snapshot_accounts_for_every_byte(
        cap in 1usize..200,
        writes in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..24)), 0..40),
    ) {
        let mut log = log(cap);
        let mut written = [Vec::new(), Vec::new()];
        for (out, data) in writes {
            written[usize::from(!out)].extend_from_slice(&data);
            log.append(if out { OUT } else { ERR }, Bytes::from(data));
        }
        let snapshot = log.snapshot();
        for (head_tail, all) in [(snapshot.stdout, &written[0]), (snapshot.stderr, &written[1])] {
            prop_assert_eq!(head_tail.data.len() as u64 + head_tail.omitted, all.len() as u64);
            let agrees = (0..=head_tail.data.len()).any(|split| {
                all.starts_with(&head_tail.data[..split]) && all.ends_with(&head_tail.data[split..])
            });
            prop_assert!(agrees);
        }
    }
}

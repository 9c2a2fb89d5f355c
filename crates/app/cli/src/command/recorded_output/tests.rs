//! Tests of positions in recorded output.

use exec_wire::process::OutputStream::{self, Stderr, Stdout};
use serde_json::json;

use super::*;

/// Returns a page after `after` with the chunks `seqs`.
fn page(seqs: &[u64], next_seq: u64, exit_seq: Option<u64>, closed: bool) -> OutputPage {
    let chunk = |seq: &u64| json!({"seq": seq, "stream": "stdout", "chunk": "eA=="});
    let page = json!({
        "chunks": seqs.iter().map(chunk).collect::<Vec<_>>(),
        "nextSeq": next_seq,
        "exited": exit_seq.is_some(),
        "exitCode": exit_seq.map(|_| 0),
        "exitSeq": exit_seq,
        "closed": closed,
    });
    serde_json::from_value(page).unwrap()
}

fn missing(chunks: &[RecordedChunk]) -> Vec<Option<MissingOutput>> {
    chunks.iter().map(|chunk| chunk.missing).collect()
}

#[test]
fn output_of_a_running_process_is_read_up_to_the_start_position() {
    let mut cursor = OutputCursor::new(OutputSeq(3));
    assert_eq!(cursor.handle_page(page(&[1], 2, None, false)).len(), 1);
    assert!(!cursor.is_over);
    assert_eq!(cursor.handle_page(page(&[2], 3, None, false)).len(), 1);
    assert!(cursor.is_over && !cursor.is_closed);
    assert_eq!(cursor.last, OutputSeq(2));
}

#[test]
fn output_of_a_process_that_exits_meanwhile_is_read_completely() {
    let mut cursor = OutputCursor::new(OutputSeq(2));
    for seq in 1..=5 {
        let chunks = cursor.handle_page(page(&[seq], seq + 1, Some(6), true));
        assert_eq!(missing(&chunks), [None]);
        assert!(!cursor.is_over);
    }
    assert_eq!(cursor.handle_page(page(&[], 8, Some(6), true)), []);
    assert!(cursor.is_over && cursor.is_closed);
    assert_eq!(cursor.last, OutputSeq(7));
}

#[test]
fn missing_output_is_reported_once_and_an_exit_is_not_missing_output() {
    let mut cursor = OutputCursor::new(OutputSeq(100));
    let chunks = cursor.handle_page(page(&[5, 6], 7, None, false));
    assert_eq!(missing(&chunks), [Some(MissingOutput::Earlier), None]);
    let chunks = cursor.handle_page(page(&[8, 10], 11, Some(7), false));
    assert_eq!(missing(&chunks), [None, Some(MissingOutput::Between)]);
    // What was skipped on purpose is not missing.
    let mut cursor = OutputCursor::new(OutputSeq(100));
    cursor.skip_to(OutputSeq(4));
    let chunks = cursor.handle_page(page(&[5], 6, None, false));
    assert_eq!(missing(&chunks), [None]);
}

/// Returns the last lines of these chunks, searched in ranges of two.
fn last_lines(texts: &[(OutputStream, &'static str)], lines: usize) -> String {
    let numbered = (1..).map(OutputSeq).zip(texts);
    let counts: Vec<_> = numbered
        .map(|(seq, (_, text))| (seq, LineCount::of(text.as_bytes())))
        .collect();
    let mut search = LastLinesSearch::new(lines);
    for range in counts.rchunks(2) {
        search.handle_chunks(range);
    }
    let all = || texts.iter().map(|(_, text)| *text);
    match search.found {
        None => all().collect(),
        Some((seq, newline)) => {
            let index = usize::try_from(seq.0 - 1).unwrap();
            let first = texts[index].1;
            let first = &first[after_newline(first.as_bytes(), newline)..];
            [first].into_iter().chain(all().skip(index + 1)).collect()
        }
    }
}

#[test]
fn last_lines_are_counted_across_chunks() {
    let all = [
        (Stdout, "one\ntw"),
        (Stdout, "o\nthree\n"),
        (Stderr, "four\n"),
        (Stdout, ""),
    ];
    for (lines, expected) in [
        (0, ""),
        (1, "four\n"),
        (2, "three\nfour\n"),
        (3, "two\nthree\nfour\n"),
        (4, "one\ntwo\nthree\nfour\n"),
        (9, "one\ntwo\nthree\nfour\n"),
    ] {
        assert_eq!(last_lines(&all, lines), expected, "{lines}");
    }
}

#[test]
fn unterminated_line_counts_as_a_line() {
    let all = [(Stdout, "one\ntwo")];
    assert_eq!(last_lines(&all, 1), "two");
    assert_eq!(last_lines(&all, 2), "one\ntwo");
}

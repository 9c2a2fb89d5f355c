//! Token budgets, and the last line.

use exec_env::process::HeadTailBuffer;
use proptest::prelude::*;

use super::*;

fn truncated(retained: usize, written: &[u8], tokens: usize) -> Transcript {
    let mut buffer = HeadTailBuffer::new(retained);
    buffer.push(written);
    Transcript::truncated(buffer.take(), tokens)
}

#[test]
fn output_within_the_budget_is_shown_completely() {
    let transcript = truncated(1000, b"hello \xffworld", 10);
    assert_eq!(transcript.text, "hello \u{fffd}world");
    assert_eq!(
        (transcript.original_tokens, transcript.omitted_bytes),
        (4, 0)
    );
}

#[test]
fn middle_is_omitted_at_line_boundaries() {
    let lines: String = (0..100).map(|line| format!("line {line:02}\n")).collect();
    let transcript = truncated(10_000, lines.as_bytes(), 10);
    let expected =
        "line 00\nline 01\n[... 192 tokens (768 bytes) left out ...]\nline 98\nline 99\n";
    assert_eq!(transcript.text, expected);
    assert_eq!(
        (transcript.original_tokens, transcript.omitted_bytes),
        (200, 768)
    );
}

#[test]
fn unretained_output_counts_as_omitted() {
    let transcript = truncated(16, "ä".repeat(100).as_bytes(), 1000);
    assert!(transcript.text.starts_with("ääää\n[... "), "{transcript:?}");
    assert!(transcript.text.ends_with("...]\nääää"), "{transcript:?}");
    assert_eq!(
        (transcript.original_tokens, transcript.omitted_bytes),
        (50, 184)
    );
    let cut = truncated(15, "ä".repeat(100).as_bytes(), 1000);
    assert!(!cut.text.contains('\u{fffd}'), "{cut:?}");
}

#[test]
fn incomplete_character_is_found_only_at_the_end() {
    for (bytes, count) in [
        (&b""[..], 0),
        (b"abc", 0),
        (b"a\xe2\x82", 2),
        (b"\xf0\x9f\x98", 3),
        (b"a\xc3", 1),
        (b"\xe2\x82\xac", 0),
        (b"a\xff", 0),
        (b"\x82\x82", 0),
    ] {
        assert_eq!(incomplete_end(bytes), count, "{bytes:?}");
    }
}

fn last_line_of(chunks: &[&str]) -> Option<String> {
    let mut buffers = OutputBuffers::new(64 << 10, None);
    for (seq, chunk) in (1..).zip(chunks) {
        buffers.push(&OutputChunk {
            seq: OutputSeq(seq),
            stream: OutputStream::Stdout,
            data: chunk.as_bytes().to_vec().into(),
        });
    }
    let line = buffers.last_line();
    buffers.take(OutputView::Plain, 1000);
    assert_eq!(buffers.last_line(), line, "shown output counts as well");
    line
}

#[test]
fn last_line_that_is_not_blank_is_found() {
    assert_eq!(last_line_of(&[]), None);
    assert_eq!(last_line_of(&["\n\n"]), None);
    assert_eq!(last_line_of(&["one\ntwo\n\n"]).as_deref(), Some("two"));
    assert_eq!(last_line_of(&["one\ntw", "o"]).as_deref(), Some("two"));
    assert_eq!(last_line_of(&["10%\r", "20%\r"]).as_deref(), Some("20%"));
}

#[test]
fn last_line_has_no_escape_codes() {
    let coloured = ["\x1b[32mstep\x1b", "[0m 1\x1b]0;title\x07\x1b[K\n"];
    assert_eq!(last_line_of(&coloured).as_deref(), Some("step 1"));
    assert_eq!(last_line_of(&["10%\x1b[2K\r20%"]).as_deref(), Some("20%"));
}

#[test]
fn long_last_line_is_truncated() {
    let line = "x".repeat(100_000);
    assert_eq!(last_line_of(&[&line]).unwrap().len(), MAX_LAST_LINE);
    let parts = vec!["x"; 1000];
    assert_eq!(last_line_of(&parts).unwrap().len(), MAX_LAST_LINE);
}

proptest! {
    #[test]
    fn budget_is_respected_and_every_byte_counted(
        written in "[a-zä\u{1f600}\n]{0,400}",
        retained in 8usize..600,
        tokens in 0usize..150,
    ) {
        let transcript = truncated(retained, written.as_bytes(), tokens);
        let Transcript { text, original_tokens, omitted_bytes } = transcript;
        if omitted_bytes == 0 {
            prop_assert_eq!(&text, &written);
            return Ok(());
        }
        let (from, to) = (text.find("[... ").unwrap(), text.find("...]\n").unwrap() + 5);
        let last = &text[to..];
        let first = written.len() - usize::try_from(omitted_bytes).unwrap() - last.len();
        // An unterminated line is terminated before the marker.
        prop_assert!(from == first || (from == first + 1 && !text[..first].ends_with('\n')));
        prop_assert!(first + last.len() <= tokens * 4);
        prop_assert!(written.starts_with(&text[..first]) && written.ends_with(last));
        prop_assert_eq!(original_tokens, written.len().div_ceil(4));
    }
}

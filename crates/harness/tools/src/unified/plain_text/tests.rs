//! Conversion of output to text.

use exec_wire::process::OutputStream;
use proptest::prelude::*;

use super::PlainText;

const OUT: OutputStream = OutputStream::Stdout;

fn plain<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> String {
    let (mut plain, mut text) = (PlainText::default(), Vec::new());
    for chunk in chunks {
        plain.feed(OUT, chunk, &mut text);
    }
    plain.finish(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn escape_codes_are_removed() {
    for (written, text) in [
        ("\x1b[1;31mred\x1b[0m\r\n", "red\n"),
        (
            "\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\b",
            "alinkb",
        ),
        ("\x1bPq#0;2;0\x1b\\a\x1b(Bb\x1b=c\x1b[?25ld", "abcd"),
        ("\x1b_hidden\x1b\\\x1b^hidden\x07shown", "shown"),
        ("a\x1b[38:2:1:2:3mb\x1b[>4;2mc\x07\x00d", "abcd"),
        ("half\x1b[3\x18cancelled", "halfcancelled"),
        ("\u{9b}31mtext", "31mtext"),
    ] {
        assert_eq!(plain([written.as_bytes()]), text, "{written:?}");
    }
}

#[test]
fn overwritten_text_is_removed() {
    for (written, text) in [
        ("10%\r50%\r100%\n", "100%\n"),
        ("Progress 9\rDone\x1b[K\n", "Done\n"),
        ("old line\x1b[2K\rnew\n", "new\n"),
        ("_\x08Ab\x08bc", "Abc"),
        ("wrold\x1b[4D\x1b[Por\x1b[Cd!", "wordd!"),
        ("a\x1b[5Gb\rx", "x   b"),
        ("äöü\r\x1b[Ce", "äeü"),
        ("äöü\x08\x08\x1b[P\x1b[1K\x08z", "zü"),
        ("ab\r\u{20ac}c\rd", "dc"),
        ("abc\x1b[1K\rx", "x"),
        ("abc\x1b[D\x1b[1K\rx", "x c"),
        ("ab\x1b[2Kc\x1b[9Cd\x1b[9C\n", "  c         d\n"),
        ("menu\x1b[2;1Hentry\x1b[H", "menu\nentry\n"),
    ] {
        assert_eq!(plain([written.as_bytes()]), text, "{written:?}");
    }
}

#[test]
fn invalid_utf8_is_replaced_across_chunks() {
    let written = b"a\xe2\x82\xacb\xff\xe2\x82c\xf0\x9f\x98";
    let text = "a\u{20ac}b\u{fffd}\u{fffd}c\u{fffd}";
    assert_eq!(plain([&written[..]]), text);
    assert_eq!(plain(written.chunks(1)), text);
}

#[test]
fn streams_keep_separate_parser_states() {
    let (mut plain, mut text) = (PlainText::default(), Vec::new());
    plain.feed(OUT, b"a\x1b[3", &mut text);
    plain.feed(OutputStream::Stderr, b"b\xe2\x82", &mut text);
    plain.feed(OUT, b"1mc", &mut text);
    plain.feed(OutputStream::Stderr, b"\xac", &mut text);
    plain.finish(&mut text);
    assert_eq!(text, "abc\u{20ac}".as_bytes());
}

#[test]
fn settled_line_is_not_emitted_again() {
    let (mut plain, mut text) = (PlainText::default(), Vec::new());
    plain.feed(OUT, b"one\n50%", &mut text);
    assert_eq!((&text[..], plain.line()), (&b"one\n"[..], &b"50%"[..]));
    plain.settle(&mut text);
    plain.feed(OUT, b"\r60%", &mut text);
    plain.settle(&mut text);
    assert_eq!(text, b"one\n50%60%");
}

#[test]
fn endless_line_is_not_buffered() {
    let (mut plain, mut text) = (PlainText::default(), Vec::new());
    for _ in 0..100 {
        plain.feed(OUT, "ä".repeat(1000).as_bytes(), &mut text);
        assert!(plain.line().len() <= 4 << 10);
    }
    plain.settle(&mut text);
    assert_eq!(text, "ä".repeat(100_000).as_bytes());
}

/// Bytes with frequent escape codes and broken characters.
fn written() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop_oneof![
        Just(b"\x1b[".to_vec()),
        Just(b"\x1b]0;t\x07".to_vec()),
        Just(b"\x1b\\".to_vec()),
        Just(b"\x1bP".to_vec()),
        Just(b"\r".to_vec()),
        Just(b"\x08".to_vec()),
        Just("\u{20ac}ä\u{1f600}".as_bytes().to_vec()),
        Just(vec![b'x'; 5000]),
        Just(vec![0xe2, 0x82]),
        "[0-9;]{0,4}[A-Ka-z]".prop_map(String::into_bytes),
        "[ -~\n]{0,10}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..6),
    ];
    proptest::collection::vec(pieces, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn text_does_not_depend_on_chunking(
        written in written(),
        cuts in proptest::collection::vec(1usize..2000, 1..20),
    ) {
        let expected = plain([&written[..]]);
        let mut chunks = Vec::new();
        let mut remaining = &written[..];
        for cut in cuts.iter().cycle() {
            if remaining.is_empty() {
                break;
            }
            let (chunk, following) = remaining.split_at((*cut).min(remaining.len()));
            chunks.push(chunk);
            remaining = following;
        }
        prop_assert_eq!(&plain(chunks), &expected);
        if written.len() < 4000 {
            prop_assert_eq!(&plain(written.chunks(1)), &expected);
        }
        prop_assert!(!expected.contains(|c: char| c.is_control() && c != '\n' && c != '\t'));
    }
}

#[test]
fn large_parameters_cost_no_more_than_small_ones() {
    let took = |code: &str| {
        let started_at = std::time::Instant::now();
        let (mut plain, mut text) = (PlainText::default(), Vec::new());
        plain.feed(OUT, code.repeat(2000).as_bytes(), &mut text);
        started_at.elapsed()
    };
    for kind in ["P", "D"] {
        let large = took(&format!("abc\r\x1b[65535{kind}"));
        let small = took(&format!("abc\r\x1b[00004{kind}"));
        let limit = small * 20 + std::time::Duration::from_millis(100);
        assert!(large < limit, "{kind}: {large:?}, {small:?}");
    }
}

//! Rendering of drawings.

use proptest::prelude::*;

use super::*;

const CASES: u32 = 256;

fn screen() -> TerminalScreen {
    TerminalScreen::new(TerminalSize { rows: 4, cols: 20 })
}

#[test]
fn latest_drawing_is_rendered() {
    let mut screen = screen();
    screen.feed(b"gone\r\n\x1b[2J\x1b[1;3Htitle\x1b[3;1H\x1b[31mred\x1b[0m\x1b[2;5H");
    assert_eq!(
        screen.render(),
        "  title\n\nred\n[cursor at row 2, column 5]\n"
    );
    screen.feed(b"\x1b[?25l\x1b[2J");
    assert_eq!(screen.render(), "[cursor at row 2, column 5, hidden]\n");
}

#[test]
fn scrolled_lines_are_counted() {
    let mut screen = screen();
    screen.feed(b"1\r\n2\r\n3\r\n4");
    assert_eq!(screen.take_scrolled(), 0);
    screen.feed(b"\r\n5\r\n6\r\n");
    assert_eq!(screen.render(), "4\n5\n6\n[cursor at row 4, column 1]\n");
    assert_eq!(screen.take_scrolled(), 3);
    screen.feed(b"\x1b[?1049h\x1b[4;1Hstatus\n\n\x1b[?1049l");
    assert_eq!(screen.take_scrolled(), 0);
}

#[test]
fn endless_control_string_is_not_buffered() {
    let mut screen = screen();
    screen.feed(b"a\x1b]0;");
    for _ in 0..1000 {
        screen.feed(&[b'x'; 1000]);
    }
    screen.feed(b"\x07b\x1b]0;short\x1b\\c");
    assert_eq!(screen.render(), "abc\n[cursor at row 1, column 4]\n");
}

#[test]
fn oversized_insert_codes_are_clamped() {
    let mut screen = screen();
    let started_at = std::time::Instant::now();
    for _ in 0..20 {
        screen.feed(b"gone\x1b[65535L\x1b[65535T\x1b[6553");
        screen.feed(b"5@kept\x1b[999;1;2@\x1b[1;1H");
    }
    assert!(started_at.elapsed() < std::time::Duration::from_secs(2));
    assert_eq!(screen.render(), "    kept\n[cursor at row 1, column 1]\n");
}

/// Every byte after which the parser continues a code.
fn controls() -> impl Iterator<Item = u8> {
    let ends = |byte: &u8| matches!(byte, 0x18 | 0x1a | 0x1b);
    (0x00..=0x1f)
        .chain(0x7f..=0xff)
        .filter(move |byte| !ends(byte))
}

#[test]
fn control_after_escape_does_not_bypass_clamping() {
    for control in controls() {
        let mut screen = screen();
        screen.feed(&[0x1b, control, b'[']);
        screen.feed(b"65535");
        assert_eq!(screen.parameters, b"65535", "behind {control:#x}");
        screen.feed(b"L\x1b");
        screen.feed(&[control, control, b'[']);
        screen.feed(b"2;7Hkept");
        let text = screen.render();
        assert_eq!(
            text, "\n      kept\n[cursor at row 2, column 11]\n",
            "behind {control:#x}"
        );
    }
}

#[test]
fn control_after_escape_does_not_bypass_the_string_limit() {
    for control in controls() {
        let mut screen = screen();
        screen.feed(&[0x1b, control, b']']);
        screen.feed(&[b'x'; 2 * MAX_STRING_BYTES]);
        assert!(
            matches!(screen.state, ParseState::String(length) if length == 2 * MAX_STRING_BYTES),
            "behind {control:#x}: {:?}",
            screen.state
        );
        screen.feed(b"\x07\x1b[1;1Hkept");
        assert_eq!(screen.render(), "kept\n[cursor at row 1, column 5]\n");
    }
}

#[test]
fn cancel_controls_work_after_escape() {
    for end in [0x18, 0x1a] {
        let mut screen = screen();
        screen.feed(&[0x1b, end]);
        screen.feed(b"[65535L\x1b\x1b[2;1Hb");
        let text = screen.render();
        assert_eq!(text, "[65535L\nb\n[cursor at row 2, column 2]\n");
    }
}

#[test]
fn newline_inside_a_code_is_counted() {
    let mut screen = screen();
    screen.feed(b"\x1b[4;1H\x1b\n[\n3\n1m");
    assert_eq!(screen.take_scrolled(), 3);
}

#[test]
fn ignored_strings_end_only_at_their_terminator() {
    let mut screen = screen();
    let lines = "line\n".repeat(MAX_STRING_BYTES);
    screen.feed(b"\x1b[4;1H");
    for begin in ["\x1bPq", "\x1bX", "\x1b^", "\x1b_"] {
        screen.feed(format!("{begin}\x07{lines}\x1b\\").as_bytes());
        assert_eq!(screen.take_scrolled(), 0);
    }
    screen.feed(b"\x1b[1;1H\x1bPq\x9c");
    for _ in 0..MAX_STRING_BYTES {
        screen.feed(b"gone\r");
    }
    screen.feed(b"kept");
    assert_eq!(screen.render(), "kept\n[cursor at row 1, column 5]\n");
}

#[test]
fn split_parameters_arrive_and_cancelled_ones_do_not() {
    let mut screen = screen();
    for byte in b"\x1b[2;\r3Ha\x1b[3;1\x1b[?25lb\x1b[4\x18c" {
        screen.feed(&[*byte]);
    }
    assert_eq!(
        screen.render(),
        "\n  abc\n[cursor at row 2, column 6, hidden]\n"
    );
}

/// Codes that move, scroll and erase, with boundary values, among characters of each width.
fn drawn() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![
        Just(""),
        Just("0"),
        Just("1"),
        Just("4"),
        Just("5"),
        Just("20"),
        Just("21"),
        Just("65535"),
        Just("99999")
    ];
    let numbers = proptest::collection::vec(number, 0..4).prop_map(|numbers| numbers.join(";"));
    let codes = (numbers, "[?!]?", "[A-Za-z@`]");
    let piece = prop_oneof![
        4 => codes.prop_map(|(numbers, mark, kind)| format!("\x1b[{mark}{numbers}{kind}").into_bytes()),
        1 => "\x1b[A-Z0-9=>()#]{1,2}".prop_map(String::into_bytes),
        1 => Just("\u{ff21}\u{301}\u{1f600}a\u{200b}".as_bytes().to_vec()),
        1 => Just("\u{4e00}".repeat(21).into_bytes()),
        1 => "[\r\n\t\x08\x0b\x0c\x0e\x0f]{1,5}".prop_map(String::into_bytes),
        1 => Just(b"\x1b[?1049h".to_vec()),
        1 => Just(b"\x1b[?6h".to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..6),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]
    #[test]
    fn any_drawing_can_be_rendered(drawn in drawn(), rows in 1u16..5, cols in 1u16..22) {
        let mut screen = TerminalScreen::new(TerminalSize { rows, cols });
        screen.feed(&drawn);
        prop_assert!(screen.render().ends_with("]\n"));
    }

    #[test]
    fn any_bytes_can_be_rendered(chunks: Vec<Vec<u8>>) {
        let mut screen = screen();
        for chunk in chunks {
            screen.feed(&chunk);
        }
        prop_assert!(screen.render().ends_with("]\n"));
    }
}

//! What a terminal shows now.
//!
//! Not here: what was shown before; a full-screen program's output says little as text.

use std::fmt;

use exec_wire::process::TerminalSize;

/// Longest title, colour or link that a program may send. The parser would keep all of it.
const MAX_STRING_BYTES: usize = 4096;
/// Longest parameters of a control sequence. Those of real programs are a few dozen bytes.
const MAX_PARAMETER_BYTES: usize = 256;
/// Fewest rows and columns: a wide character must fit.
const MIN_SIDE: u16 = 2;

/// A terminal without a window.
pub(super) struct Screen {
    parser: vt100::Parser,
    place: Place,
    /// The parameters of the control sequence that the output is in. The parser gets them with its end.
    parameters: Vec<u8>,
    /// Lines that have left the screen at its top since somebody looked.
    scrolled: u64,
}

/// Where the output is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Text,
    /// Behind ESC.
    Escape,
    /// In a control sequence, behind `ESC [`.
    Sequence,
    /// In a control string, behind `ESC ]` and its kind, and how far.
    String(usize),
}

impl Screen {
    pub(super) fn new(size: TerminalSize) -> Self {
        let (rows, cols) = (size.rows.max(MIN_SIDE), size.cols.max(MIN_SIDE));
        Self {
            parser: vt100::Parser::new(rows, cols, 0),
            place: Place::Text,
            parameters: Vec::new(),
            scrolled: 0,
        }
    }

    /// Takes output.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let mut from = 0;
        for (index, byte) in bytes.iter().enumerate() {
            self.place = match (self.place, byte) {
                (_, 0x1b) => {
                    self.parameters.clear();
                    Place::Escape
                }
                (Place::Escape, b'[') => Place::Sequence,
                (Place::Escape, b']' | b'P' | b'X' | b'^' | b'_') => Place::String(0),
                (Place::Sequence, 0x20..=0x3f) => {
                    self.parser.process(&bytes[from..index]);
                    from = index + 1;
                    if self.parameters.len() < MAX_PARAMETER_BYTES {
                        self.parameters.push(*byte);
                    }
                    Place::Sequence
                }
                (Place::Sequence, 0x40..=0x7e) => {
                    self.parser.process(&bytes[from..index]);
                    from = index;
                    self.end_parameters(*byte);
                    Place::Text
                }
                (Place::Sequence | Place::String(_), 0x18 | 0x1a) | (Place::String(_), 0x07) => {
                    self.parameters.clear();
                    Place::Text
                }
                (Place::Text, b'\n') => {
                    self.parser.process(&bytes[from..index]);
                    from = index;
                    self.count_scroll();
                    Place::Text
                }
                (Place::Sequence, _) => Place::Sequence,
                (Place::Escape | Place::Text, _) => Place::Text,
                (Place::String(length), _) => {
                    if length >= MAX_STRING_BYTES {
                        // Too long: what came so far is all that the parser is told.
                        self.parser.process(&bytes[from..index]);
                        from = index + 1;
                    }
                    Place::String(length + 1)
                }
            };
        }
        self.parser.process(&bytes[from..]);
    }

    /// Counts a line that the end of the last one is about to push off the screen. Full-screen programs draw
    /// on a screen that nothing scrolls off.
    fn count_scroll(&mut self) {
        let screen = self.parser.screen();
        let (rows, _) = screen.size();
        if !screen.alternate_screen() && screen.cursor_position().0 + 1 == rows {
            self.scrolled += 1;
        }
    }

    /// Returns how many lines have left the screen at its top since this was asked, and counts anew. Lines
    /// that scroll because another one is too long are not counted.
    pub(super) fn take_scrolled(&mut self) -> u64 {
        std::mem::take(&mut self.scrolled)
    }

    /// Counts lines that nobody was told of.
    pub(super) fn put_back_scrolled(&mut self, lines: u64) {
        self.scrolled += lines;
    }

    /// Hands over the parameters of a sequence. The parser inserts lines and cells as often as it is
    /// told, also where all but the last of them fall off the screen.
    fn end_parameters(&mut self, kind: u8) {
        let parameters = std::mem::take(&mut self.parameters);
        let (rows, columns) = self.parser.screen().size();
        let most = match kind {
            b'L' | b'T' => rows,
            b'@' => columns,
            _ => u16::MAX,
        };
        let digits = parameters.iter().take_while(|byte| byte.is_ascii_digit());
        let number = digits.fold(0_u16, |number, digit| {
            let number = number.saturating_mul(10);
            number.saturating_add(u16::from(digit - b'0'))
        });
        if number > most {
            self.parser.process(most.to_string().as_bytes());
        } else {
            self.parser.process(&parameters);
        }
    }

    /// Returns the lines that show something, and where the cursor is.
    pub(super) fn render(&self) -> String {
        let screen = self.parser.screen();
        let (_, columns) = screen.size();
        let rows: Vec<String> = screen
            .rows(0, columns)
            .map(|row| row.trim_end().to_owned())
            .collect();
        let shown = rows.iter().rposition(|row| !row.is_empty());
        let mut text = rows[..shown.map_or(0, |last| last + 1)].join("\n");
        if !text.is_empty() {
            text.push('\n');
        }
        let (row, column) = screen.cursor_position();
        let hidden = if screen.hide_cursor() { ", hidden" } else { "" };
        text + &format!(
            "[cursor at row {}, column {}{hidden}]\n",
            row + 1,
            column + 1
        )
    }
}

impl fmt::Debug for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Screen")
            .field("size", &self.parser.screen().size())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CASES: u32 = 256;

    fn screen() -> Screen {
        Screen::new(TerminalSize { rows: 4, cols: 20 })
    }

    #[test]
    fn what_was_drawn_last_is_shown() {
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
    fn lines_that_leave_the_screen_are_counted() {
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
    fn a_string_without_end_is_not_kept_and_what_follows_is_shown() {
        let mut screen = screen();
        screen.feed(b"a\x1b]0;");
        for _ in 0..1000 {
            screen.feed(&[b'x'; 1000]);
        }
        screen.feed(b"\x07b\x1b]0;short\x1b\\c");
        assert_eq!(screen.render(), "abc\n[cursor at row 1, column 4]\n");
    }

    #[test]
    fn a_code_that_inserts_without_measure_costs_no_more_than_the_screen_is_large() {
        let mut screen = screen();
        let began = std::time::Instant::now();
        for _ in 0..20 {
            screen.feed(b"gone\x1b[65535L\x1b[65535T\x1b[6553");
            screen.feed(b"5@kept\x1b[999;1;2@\x1b[1;1H");
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(2));
        assert_eq!(screen.render(), "    kept\n[cursor at row 1, column 1]\n");
    }

    #[test]
    fn parameters_that_come_in_pieces_arrive_and_those_of_a_broken_code_do_not() {
        let mut screen = screen();
        for byte in b"\x1b[2;\r3Ha\x1b[3;1\x1b[?25lb\x1b[4\x18c" {
            screen.feed(&[*byte]);
        }
        assert_eq!(
            screen.render(),
            "\n  abc\n[cursor at row 2, column 6, hidden]\n"
        );
    }

    /// Codes that move, scroll and erase, with numbers at the edges, among characters of each width.
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
        fn any_drawing_can_be_shown(drawn in drawn(), rows in 1u16..5, cols in 1u16..22) {
            let mut screen = Screen::new(TerminalSize { rows, cols });
            screen.feed(&drawn);
            prop_assert!(screen.render().ends_with("]\n"));
        }

        #[test]
        fn any_bytes_can_be_shown(chunks: Vec<Vec<u8>>) {
            let mut screen = screen();
            for chunk in chunks {
                screen.feed(&chunk);
            }
            prop_assert!(screen.render().ends_with("]\n"));
        }
    }
}

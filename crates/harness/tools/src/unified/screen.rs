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
pub struct Screen {
    parser: vt100::Parser,
    state: ParseState,
    /// The parameters of the control sequence that the output is in. The parser gets them with its end.
    parameters: Vec<u8>,
    /// Lines that have left the screen at its top since somebody looked.
    scrolled: u64,
}

/// Where the output is.
#[derive(Clone, Copy, Debug)]
enum ParseState {
    Text,
    /// Behind ESC.
    Escape,
    /// In a control sequence, behind `ESC [`.
    Sequence,
    /// In a control string that the parser keeps, behind `ESC ]`, and how far.
    String(usize),
    /// In a control string that the parser passes over, behind `ESC P` and its kind.
    Ignored,
}

impl Screen {
    /// Begins with an empty one.
    pub fn new(size: TerminalSize) -> Self {
        let (rows, cols) = (size.rows.max(MIN_SIDE), size.cols.max(MIN_SIDE));
        Self {
            parser: vt100::Parser::new(rows, cols, 0),
            state: ParseState::Text,
            parameters: Vec::new(),
            scrolled: 0,
        }
    }

    /// Takes output.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut from = 0;
        for (index, byte) in bytes.iter().enumerate() {
            self.state = match (self.state, byte) {
                (_, 0x1b) => {
                    self.parameters.clear();
                    ParseState::Escape
                }
                (ParseState::Escape, b'[') => ParseState::Sequence,
                (ParseState::Escape, b']') => ParseState::String(0),
                (ParseState::Escape, b'P' | b'X' | b'^' | b'_') => ParseState::Ignored,
                (ParseState::Sequence, 0x20..=0x3f) => {
                    self.parser.process(&bytes[from..index]);
                    from = index + 1;
                    if self.parameters.len() < MAX_PARAMETER_BYTES {
                        self.parameters.push(*byte);
                    }
                    ParseState::Sequence
                }
                (ParseState::Sequence, 0x40..=0x7e) => {
                    self.parser.process(&bytes[from..index]);
                    from = index;
                    self.flush_parameters(*byte);
                    ParseState::Text
                }
                (_, 0x18 | 0x1a) | (ParseState::String(_), 0x07) => {
                    self.parameters.clear();
                    ParseState::Text
                }
                (ParseState::Text | ParseState::Escape | ParseState::Sequence, b'\n') => {
                    self.parser.process(&bytes[from..index]);
                    from = index;
                    self.count_scroll();
                    self.state
                }
                // The parser obeys other controls in the midst of a code, passes over what is not ASCII, and
                // goes on with the code.
                (ParseState::Escape, 0x00..=0x1f | 0x7f..) => ParseState::Escape,
                (ParseState::Sequence, _) => ParseState::Sequence,
                (ParseState::Escape | ParseState::Text, _) => ParseState::Text,
                (ParseState::Ignored, _) => ParseState::Ignored,
                (ParseState::String(length), _) => {
                    if length >= MAX_STRING_BYTES {
                        // Too long: what came so far is all that the parser is told.
                        self.parser.process(&bytes[from..index]);
                        from = index + 1;
                    }
                    ParseState::String(length + 1)
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
    pub(super) fn restore_scrolled(&mut self, lines: u64) {
        self.scrolled += lines;
    }

    /// Hands over the parameters of a sequence. The parser inserts lines and cells as often as it is
    /// told, also where all but the last of them fall off the screen.
    fn flush_parameters(&mut self, kind: u8) {
        let parameters = std::mem::take(&mut self.parameters);
        let (rows, columns) = self.parser.screen().size();
        let max_count = match kind {
            b'L' | b'T' => rows,
            b'@' => columns,
            _ => u16::MAX,
        };
        let digits = parameters.iter().take_while(|byte| byte.is_ascii_digit());
        let number = digits.fold(0_u16, |number, digit| {
            let number = number.saturating_mul(10);
            number.saturating_add(u16::from(digit - b'0'))
        });
        if number > max_count {
            self.parser.process(max_count.to_string().as_bytes());
        } else {
            self.parser.process(&parameters);
        }
    }

    /// Returns what makes another terminal of the same size show the same: the screen that is in use, its
    /// text and colours, the cursor, and the modes of keys and mouse.
    pub fn repaint(&self) -> Vec<u8> {
        let screen = self.parser.screen();
        let mut bytes = Vec::new();
        if screen.alternate_screen() {
            bytes.extend_from_slice(b"\x1b[?1049h");
        }
        bytes.extend(screen.state_formatted());
        bytes
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
mod tests;

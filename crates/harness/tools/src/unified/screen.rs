//! The screen of a terminal.
//!
//! Elsewhere: text of earlier output, which full-screen programs do not produce.

use std::fmt;

use exec_wire::process::TerminalSize;

/// Maximum length of a title, colour or link. The parser would buffer all of it.
const MAX_STRING_BYTES: usize = 4096;
/// Maximum length of the parameters of a control sequence. Real programs use a few dozen bytes.
const MAX_PARAMETER_BYTES: usize = 256;
/// Minimum number of rows and columns: a wide character must fit.
const MIN_SIDE: u16 = 2;

/// A headless terminal.
pub struct TerminalScreen {
    parser: vt100::Parser,
    state: ParseState,
    /// Parameters of the current control sequence. The parser gets them at its end.
    parameters: Vec<u8>,
    /// Lines scrolled off the top since the last call.
    scrolled: u64,
}

/// Parser state.
#[derive(Clone, Copy, Debug)]
enum ParseState {
    Text,
    /// After ESC.
    Escape,
    /// In a control sequence, after `ESC [`.
    Sequence,
    /// In a control string that the parser buffers, after `ESC ]`, with its length so far.
    String(usize),
    /// In a control string that the parser ignores, such as after `ESC P`.
    Ignored,
}

impl TerminalScreen {
    /// Creates an empty screen.
    pub fn new(size: TerminalSize) -> Self {
        let (rows, cols) = (size.rows.max(MIN_SIDE), size.cols.max(MIN_SIDE));
        Self {
            parser: vt100::Parser::new(rows, cols, 0),
            state: ParseState::Text,
            parameters: Vec::new(),
            scrolled: 0,
        }
    }

    /// Processes output.
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
                // The parser executes other control characters inside a code, ignores bytes above
                // ASCII, and continues the code.
                (ParseState::Escape, 0x00..=0x1f | 0x7f..) => ParseState::Escape,
                (ParseState::Sequence, _) => ParseState::Sequence,
                (ParseState::Escape | ParseState::Text, _) => ParseState::Text,
                (ParseState::Ignored, _) => ParseState::Ignored,
                (ParseState::String(length), _) => {
                    if length >= MAX_STRING_BYTES {
                        // Too long: the parser gets only the first part.
                        self.parser.process(&bytes[from..index]);
                        from = index + 1;
                    }
                    ParseState::String(length + 1)
                }
            };
        }
        self.parser.process(&bytes[from..]);
    }

    /// Counts a line that the next line feed scrolls off the screen. Full-screen programs use the
    /// alternate screen, which does not scroll.
    fn count_scroll(&mut self) {
        let screen = self.parser.screen();
        let (rows, _) = screen.size();
        if !screen.alternate_screen() && screen.cursor_position().0 + 1 == rows {
            self.scrolled += 1;
        }
    }

    /// Returns and resets the number of scrolled lines. Lines scrolled by wrapping are not counted.
    pub(super) fn take_scrolled(&mut self) -> u64 {
        std::mem::take(&mut self.scrolled)
    }

    /// Passes the parameters of a sequence to the parser. Clamps the counts of insertions, which
    /// the parser would otherwise repeat beyond the size of the screen.
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

    /// Returns the bytes that reproduce the screen on another terminal of the same size: buffer,
    /// text, colours, cursor, and key and mouse modes.
    pub fn repaint(&self) -> Vec<u8> {
        let screen = self.parser.screen();
        let mut bytes = Vec::new();
        if screen.alternate_screen() {
            bytes.extend_from_slice(b"\x1b[?1049h");
        }
        bytes.extend(screen.state_formatted());
        bytes
    }

    /// Renders the non-blank lines and the cursor position.
    pub(super) fn render(&self) -> String {
        let screen = self.parser.screen();
        let (_, columns) = screen.size();
        let rows: Vec<String> = screen
            .rows(0, columns)
            .map(|row| row.trim_end().to_owned())
            .collect();
        let last_row = rows.iter().rposition(|row| !row.is_empty());
        let mut text = rows[..last_row.map_or(0, |last| last + 1)].join("\n");
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

impl fmt::Debug for TerminalScreen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Screen")
            .field("size", &self.parser.screen().size())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

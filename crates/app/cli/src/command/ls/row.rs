//! One line of a listing.

use exec_wire::{fs::FileMetadata, path_uri::PathUri};
use serde::Serialize;

use super::clock::minute;
use crate::command::{files::shown, print::printable};

/// Something in a directory, as programs read it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    /// Its name, byte by byte.
    #[serde(skip)]
    bytes: Vec<u8>,
    /// Its name.
    pub(super) name: String,
    /// Its path.
    pub(super) path: String,
    /// Its path as a URI, which has every byte of it.
    pub(super) uri: PathUri,
    /// `file`, `directory` or `other`, of what is behind a link; `nowhere` if nothing is.
    pub(super) kind: &'static str,
    /// Whether it is a link.
    pub(super) link: bool,
    /// Bytes.
    pub(super) size: u64,
    /// Milliseconds since the Unix epoch.
    pub(super) modified_at_ms: i64,
    /// Permission bits, if the server tells them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mode: Option<u32>,
}

/// Whether a line has colours.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Paint {
    /// It has, and nothing that a terminal would take for a command.
    Colours,
    /// It has none, and nothing that a terminal would take for a command.
    Harmless,
    /// It is as it is.
    Plain,
}

impl Row {
    pub(super) fn new(name: &[u8], uri: PathUri, found: FileMetadata) -> Self {
        Self {
            bytes: name.to_vec(),
            name: String::from_utf8_lossy(name).into_owned(),
            path: shown(&uri),
            uri,
            kind: match (found.is_directory, found.is_file) {
                (true, _) => "directory",
                (false, true) => "file",
                (false, false) => "other",
            },
            link: found.is_symlink,
            size: found.size,
            modified_at_ms: found.modified_at_ms,
            mode: found.mode,
        }
    }

    /// A link that leads nowhere, of which nothing more is known.
    pub(super) fn nowhere(name: &[u8], uri: PathUri) -> Self {
        let unknown = FileMetadata {
            is_directory: false,
            is_file: false,
            is_symlink: true,
            size: 0,
            created_at_ms: 0,
            modified_at_ms: 0,
            mode: None,
        };
        Self {
            kind: "nowhere",
            ..Self::new(name, uri, unknown)
        }
    }

    /// Returns its name alone.
    pub(super) fn short(&self, paint: Paint) -> Vec<u8> {
        let mark = match (self.kind, self.link) {
            ("directory", _) => "/",
            (_, true) => "@",
            _ => "",
        };
        let text = match (paint, self.kind) {
            // Whoever reads it may look for the file.
            (Paint::Plain, _) => return self.bytes.clone(),
            (Paint::Colours, "directory") => {
                format!("\x1b[1;34m{}\x1b[0m{mark}", printable(&self.name))
            }
            (Paint::Colours | Paint::Harmless, _) => format!("{}{mark}", printable(&self.name)),
        };
        text.into_bytes()
    }

    /// Returns mode, size, time and name.
    pub(super) fn long(&self, paint: Paint) -> Vec<u8> {
        let kind = match (self.link, self.kind) {
            (true, _) => 'l',
            (_, "directory") => 'd',
            (_, "file") => '-',
            _ => '?',
        };
        let mode = self.mode.map_or_else(|| "?????????".to_owned(), letters);
        let time = minute(self.modified_at_ms);
        let mut line = format!("{kind}{mode} {:>12} {time} ", self.size).into_bytes();
        line.extend(self.short(paint));
        line
    }
}

/// Returns permission bits as letters.
fn letters(mode: u32) -> String {
    let letter = |shift: u32| {
        let bit = mode >> shift & 1 == 1;
        let letter = match shift % 3 {
            2 => 'r',
            1 => 'w',
            _ => 'x',
        };
        if bit { letter } else { '-' }
    };
    (0..9).rev().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, found: FileMetadata) -> Row {
        let uri = PathUri::parse("file:///srv/x").unwrap();
        Row::new(name.as_bytes(), uri, found)
    }

    const FILE: FileMetadata = FileMetadata {
        is_directory: false,
        is_file: true,
        is_symlink: false,
        size: 42,
        created_at_ms: 0,
        modified_at_ms: 0,
        mode: Some(0o754),
    };

    #[test]
    fn a_long_line_has_mode_size_time_and_name() {
        assert_eq!(
            row("x", FILE).long(Paint::Plain),
            b"-rwxr-xr--           42 1970-01-01 00:00 x"
        );
        let unknown = FileMetadata { mode: None, ..FILE };
        assert!(
            row("x", unknown)
                .long(Paint::Plain)
                .starts_with(b"-?????????")
        );
    }

    #[test]
    fn names_are_marked_and_harmless_on_a_terminal_only() {
        let link = FileMetadata {
            is_symlink: true,
            ..FILE
        };
        assert_eq!(row("a\nb", link).short(Paint::Plain), b"a\nb");
        assert_eq!(row("a\nb", link).short(Paint::Harmless), b"a?b@");
    }

    #[test]
    fn directories_have_a_colour_where_colours_are_wanted() {
        let directory = FileMetadata {
            is_directory: true,
            is_file: false,
            ..FILE
        };
        let row = row("d", directory);
        assert_eq!(row.short(Paint::Colours), b"\x1b[1;34md\x1b[0m/");
        assert_eq!(row.short(Paint::Harmless), b"d/");
    }

    #[test]
    fn a_name_that_is_no_text_is_printed_as_it_is() {
        let uri = PathUri::parse("file:///srv/%FF").unwrap();
        assert_eq!(Row::new(b"\xff", uri, FILE).short(Paint::Plain), b"\xff");
    }
}

//! `exec-server ls`.
//!
//! A stock server does not list dangling links in a directory; one that is named is shown.

use std::{ffi::OsString, process::ExitCode};

use clap::Args;
use exec_env::filesystem::ExecutorFileSystem;
use exec_wire::{fs::FileMetadata, path_uri::PathUri};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use time::{OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};

use crate::command::{
    connect::EnvArgs,
    failure::{CommandFailure, FailureKind},
    files::{ListedEntryKind, display_path, entries, is_dangling_link, metadata_if_exists},
    operand::{OperandResolver, RemotePath},
    print::{json, printable},
    process_session::{print_notice, show_outages, write_result, write_result_bytes},
    terminal::OutputStyle,
};

/// Concurrent metadata requests.
const CONCURRENT_LOOKUPS: usize = 32;

/// Lists a directory.
#[derive(Args, Clone, Debug)]
pub struct LsCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Shows mode, size and modification time (UTC).
    #[arg(short, long)]
    pub long: bool,

    /// Includes hidden names.
    #[arg(short, long)]
    pub all: bool,

    /// Prints one JSON array.
    #[arg(long)]
    pub json: bool,

    /// A directory, or a file.
    #[arg(default_value = ".", value_name = "PATH")]
    pub path: OsString,
}

impl LsCommand {
    /// Lists the directory and prints it.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let mut operands = OperandResolver::new(&self.env_args);
        let RemotePath { env, path, .. } = operands.resolve(&self.path).await?;
        let files = env.environment().files;
        let rows = show_outages(&env.client, self.rows(&*files, &path)).await?;
        if self.json {
            return write_result(&json(&rows)?);
        }
        let style = OutputStyle::of_stdout();
        let mut text = Vec::new();
        for row in &rows {
            text.extend(match self.long {
                true => row.long(style),
                false => row.short(style),
            });
            text.push(b'\n');
        }
        write_result_bytes(&text)
    }

    async fn rows(
        &self,
        files: &dyn ExecutorFileSystem,
        path: &PathUri,
    ) -> Result<Vec<ListingRow>, CommandFailure> {
        let found = metadata_if_exists(files, path).await?;
        let name = path.file_name().unwrap_or_default();
        let Some(found) = found else {
            if is_dangling_link(files, path).await? {
                return Ok(vec![ListingRow::dangling_link(&name, path.clone())]);
            }
            let what = format!("cannot list `{}`: it does not exist", display_path(path));
            return Err(CommandFailure::new(FailureKind::NotFound, what)
                .next("run `exec-server ls` on its parent directory"));
        };
        if !found.is_directory {
            return Ok(vec![ListingRow::new(&name, path.clone(), found)]);
        }
        let listed = entries(files, path).await?;
        if let Some(error) = listed.errors.first().filter(|_| listed.entries.is_empty()) {
            return Err(CommandFailure::failed(&error.message));
        }
        if listed.truncated {
            print_notice("the listing is incomplete; `exec-server find --glob` searches by name");
        }
        let visible = |name: &[u8]| self.all || !name.starts_with(b".");
        let visible_entries = listed
            .entries
            .into_iter()
            .filter(|entry| visible(&entry.name));
        let mut lookups = stream::iter(visible_entries)
            .map(|entry| async {
                let found = metadata_if_exists(files, &entry.path).await;
                (entry, found)
            })
            .buffered(CONCURRENT_LOOKUPS);
        let mut rows = Vec::new();
        while let Some((entry, found)) = lookups.next().await {
            match found? {
                Some(found) => rows.push(ListingRow::new(&entry.name, entry.path, found)),
                None if entry.kind == ListedEntryKind::DanglingLink => {
                    rows.push(ListingRow::dangling_link(&entry.name, entry.path));
                }
                // Removed meanwhile.
                None => {}
            }
        }
        Ok(rows)
    }
}

/// Directory entry as printed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ListingRow {
    /// Bytes of the name.
    #[serde(skip)]
    bytes: Vec<u8>,
    /// Name.
    name: String,
    /// Path.
    path: String,
    /// URI of the path, which keeps every byte.
    uri: PathUri,
    /// `file`, `directory` or `other` after following links; `nowhere` for a dangling link.
    kind: &'static str,
    /// Whether it is a link.
    link: bool,
    /// Size in bytes.
    size: u64,
    /// Modification time in milliseconds since the Unix epoch.
    modified_at_ms: i64,
    /// Permission bits, if the server reports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<u32>,
}

impl ListingRow {
    fn new(name: &[u8], uri: PathUri, found: FileMetadata) -> Self {
        Self {
            bytes: name.to_vec(),
            name: String::from_utf8_lossy(name).into_owned(),
            path: display_path(&uri),
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

    /// Returns the row of a dangling link.
    fn dangling_link(name: &[u8], uri: PathUri) -> Self {
        let unknown = FileMetadata {
            is_symlink: true,
            ..FileMetadata::default()
        };
        Self {
            kind: "nowhere",
            ..Self::new(name, uri, unknown)
        }
    }

    /// Formats the name.
    fn short(&self, style: OutputStyle) -> Vec<u8> {
        let mark = match (self.kind, self.link) {
            ("directory", _) => "/",
            (_, true) => "@",
            _ => "",
        };
        let text = match (style, self.kind) {
            // A consumer may open the file, so print the exact bytes.
            (OutputStyle::Plain, _) => return self.bytes.clone(),
            (OutputStyle::Colours, "directory") => {
                format!("\x1b[1;34m{}\x1b[0m{mark}", printable(&self.name))
            }
            (OutputStyle::Colours | OutputStyle::Printable, _) => {
                format!("{}{mark}", printable(&self.name))
            }
        };
        text.into_bytes()
    }

    /// Formats mode, size, time and name.
    fn long(&self, style: OutputStyle) -> Vec<u8> {
        let kind = match (self.link, self.kind) {
            (true, _) => 'l',
            (_, "directory") => 'd',
            (_, "file") => '-',
            _ => '?',
        };
        let mode = self.mode.map_or_else(|| "?????????".to_owned(), letters);
        let time = minute(self.modified_at_ms);
        let mut line = format!("{kind}{mode} {:>12} {time} ", self.size).into_bytes();
        line.extend(self.short(style));
        line
    }
}

/// Formats permission bits as letters.
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

/// Formats a time as `2026-11-16 18:47` in UTC, because the server's time zone may differ. Returns
/// `-` for a time without a date.
fn minute(millis: i64) -> String {
    let moment = OffsetDateTime::from_unix_timestamp(millis.div_euclid(1000));
    let written = moment.ok().and_then(|moment| moment.format(MINUTE).ok());
    written.unwrap_or_else(|| "-".to_owned())
}

const MINUTE: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day] [hour]:[minute]");

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, found: FileMetadata) -> ListingRow {
        let uri = PathUri::parse("file:///srv/x").unwrap();
        ListingRow::new(name.as_bytes(), uri, found)
    }

    const FILE: FileMetadata = FileMetadata {
        is_directory: false,
        is_file: true,
        is_symlink: false,
        size: 42,
        created_at_ms: 0,
        modified_at_ms: 0,
        mode: Some(0o754),
        link_target: None,
        link_target_base64: None,
    };

    #[test]
    fn long_row_shows_mode_size_time_and_name() {
        assert_eq!(
            row("x", FILE).long(OutputStyle::Plain),
            b"-rwxr-xr--           42 1970-01-01 00:00 x"
        );
        let unknown = FileMetadata { mode: None, ..FILE };
        assert!(
            row("x", unknown)
                .long(OutputStyle::Plain)
                .starts_with(b"-?????????")
        );
    }

    #[test]
    fn names_are_marked_and_sanitised_only_on_a_terminal() {
        let link = FileMetadata {
            is_symlink: true,
            ..FILE
        };
        assert_eq!(row("a\nb", link.clone()).short(OutputStyle::Plain), b"a\nb");
        assert_eq!(row("a\nb", link).short(OutputStyle::Printable), b"a?b@");
    }

    #[test]
    fn directories_are_coloured_on_request() {
        let directory = FileMetadata {
            is_directory: true,
            is_file: false,
            ..FILE
        };
        let row = row("d", directory);
        assert_eq!(row.short(OutputStyle::Colours), b"\x1b[1;34md\x1b[0m/");
        assert_eq!(row.short(OutputStyle::Printable), b"d/");
    }

    #[test]
    fn non_utf8_name_is_printed_unchanged() {
        let uri = PathUri::parse("file:///srv/%FF").unwrap();
        assert_eq!(
            ListingRow::new(b"\xff", uri, FILE).short(OutputStyle::Plain),
            b"\xff"
        );
    }

    #[test]
    fn times_are_formatted_in_utc() {
        for (millis, text) in [
            (0, "1970-01-01 00:00"),
            (-1, "1969-12-31 23:59"),
            (951_782_400_000, "2000-02-29 00:00"),
            (1_794_854_820_000, "2026-11-16 18:47"),
            (i64::MAX, "-"),
        ] {
            assert_eq!(minute(millis), text);
        }
    }
}

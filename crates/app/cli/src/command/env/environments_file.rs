//! Our own `environments.toml`: read, edited as text, validated, and replaced atomically.
//!
//! Invariants: formatting and comments of users are kept; the file of Codex is never written,
//! because Codex refuses to start on unknown keys.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use exec_settings::{
    environments::{self, EnvironmentSelection, EnvironmentsError, SelectionInputs},
    settings_source::{self, VariableLookup},
};
use toml::Value;

use crate::command::failure::{CommandFailure, FailureKind};

/// Limit for waiting on the lock.
const TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The file, locked against other `exec-server` processes while this value lives.
#[derive(Debug)]
pub(super) struct EnvironmentsFile {
    /// Path.
    pub(super) path: PathBuf,
    /// Text.
    pub(super) text: String,
    /// Selection from the settings of Codex, which are not in this file.
    pub(super) base: EnvironmentSelection,
    _lock: File,
}

impl EnvironmentsFile {
    /// Locks and reads the file, if it exists.
    pub(super) fn open(lookup: VariableLookup<'_>) -> Result<Self, CommandFailure> {
        let path = EnvironmentSelection::own_file(lookup).ok_or_else(|| {
            CommandFailure::failed("cannot determine the directory of environments.toml")
                .next("set HOME, XDG_CONFIG_HOME or EXEC_SERVER_HOME")
        })?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        let failed = |error: io::Error| failed(&path, &error);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed)?;
        let lock = lock(directory).map_err(failed)?;
        // The file may be a link to another place; the link is kept.
        let path = fs::canonicalize(&path).unwrap_or(path);
        let text = match settings_source::read_text(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(self::failed(&path, &error)),
        };
        let base = of_codex(lookup)?;
        parse(&path, &text, &base, lookup)
            .map_err(|error| CommandFailure::new(FailureKind::UnknownEnvironment, error))?;
        Ok(Self {
            path,
            text,
            base,
            _lock: lock,
        })
    }

    /// Parses a text as if it were the content of this file.
    pub(super) fn parse_text(
        &self,
        text: &str,
        lookup: VariableLookup<'_>,
    ) -> Result<EnvironmentSelection, EnvironmentsError> {
        parse(&self.path, text, &self.base, lookup)
    }

    /// Replaces the content. The text must be valid.
    pub(super) fn replace(self, text: &str) -> Result<(), CommandFailure> {
        let failed = |error: io::Error| failed(&self.path, &error);
        let mode = fs::metadata(&self.path).map_or(0o600, |old| old.permissions().mode());
        let draft = self
            .path
            .with_extension(format!("toml.{}", std::process::id()));
        let written = write(&draft, text, mode).and_then(|()| fs::rename(&draft, &self.path));
        if written.is_err() {
            // The draft may not have been created.
            drop(fs::remove_file(&draft));
        }
        written.map_err(failed)
    }
}

fn parse(
    path: &Path,
    text: &str,
    base: &EnvironmentSelection,
    lookup: VariableLookup<'_>,
) -> Result<EnvironmentSelection, EnvironmentsError> {
    environments::parse_over(path, text, inputs(lookup), Some(base))
}

fn of_codex(lookup: VariableLookup<'_>) -> Result<EnvironmentSelection, CommandFailure> {
    EnvironmentSelection::of_codex(inputs(lookup)).map_err(|error| {
        let what = format!("{:#}", anyhow::Error::from(error));
        CommandFailure::new(FailureKind::UnknownEnvironment, what)
    })
}

fn inputs(lookup: VariableLookup<'_>) -> SelectionInputs<'_> {
    SelectionInputs {
        lookup,
        read: &settings_source::read_text,
    }
}

fn write(draft: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(draft)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(fs::Permissions::from_mode(mode & 0o7777))?;
    file.sync_all()
}

/// Locks the directory, so that concurrent changes are not lost.
fn lock(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    let until = Instant::now() + TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::Error(error)) => return Err(error),
            Err(fs::TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(POLL_INTERVAL);
            }
            Err(fs::TryLockError::WouldBlock) => {
                return Err(io::Error::other("another process is changing it"));
            }
        }
    }
}

fn failed(path: &Path, error: &io::Error) -> CommandFailure {
    let what = format!("cannot change `{}`: {error}", path.display());
    CommandFailure::failed(what)
}

/// Returns the ids of the environments, in order.
pub(super) fn ids(text: &str) -> Vec<String> {
    let table: toml::Table = text.parse().unwrap_or_default();
    let environments = table.get("environments").and_then(Value::as_array);
    let tables = environments.into_iter().flatten();
    let id = |table: &Value| Some(table.get("id")?.as_str()?.to_owned());
    tables.map(|table| id(table).unwrap_or_default()).collect()
}

/// Appends an environment.
pub(super) fn appended(text: &str, keys: &[(&str, Value)]) -> String {
    let mut text = text.trim_end().to_owned();
    if !text.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(HEADER);
    text.push('\n');
    for (key, value) in keys {
        text.push_str(&format!("{key} = {value}\n"));
    }
    text
}

/// Replaces the default.
pub(super) fn with_default(text: &str, name: &str) -> String {
    let line = format!("default = {}", Value::String(name.to_owned()));
    let old = toml::de::DeTable::parse(text).ok().and_then(|table| {
        let (key, value) = table.get_ref().get_key_value("default")?;
        Some(key.span().start..value.span().end)
    });
    match old {
        Some(old) => format!("{}{line}{}", &text[..old.start], &text[old.end..]),
        None => format!("{line}\n{text}"),
    }
}

/// Removes the environment with this index. Returns `None` if the layout is not supported.
pub(super) fn without(text: &str, index: usize) -> Option<String> {
    let mut expected: toml::Table = text.parse().ok()?;
    let environments = expected.get_mut("environments")?.as_array_mut()?;
    if index >= environments.len() {
        return None;
    }
    environments.remove(index);
    if environments.is_empty() {
        expected.remove("environments");
    }
    let remaining = without_lines(text, index)?;
    let is_exact = remaining.parse::<toml::Table>().ok()? == expected;
    is_exact.then_some(remaining)
}

fn without_lines(text: &str, index: usize) -> Option<String> {
    let lines: Vec<_> = text.split_inclusive('\n').collect();
    let headers = lines.iter().enumerate().filter(|(_, line)| is_header(line));
    let (start, _) = headers.clone().nth(index)?;
    let following = lines.iter().enumerate().skip(start + 1);
    let end = following.clone().find(|(_, line)| {
        let line = line.trim_start();
        line.starts_with('[') && !line.starts_with("[environments.")
    });
    let end = end.map_or(lines.len(), |(end, _)| end);
    // A comment directly above the next entry belongs to that entry.
    let mut next_start = end;
    while next_start > start + 1
        && end < lines.len()
        && lines[next_start - 1].trim_start().starts_with('#')
    {
        next_start -= 1;
    }
    let before = lines[..start].concat();
    Some(format!("{before}{}", lines[next_start..].concat()))
}

fn is_header(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default();
    line.split_whitespace().collect::<String>() == HEADER
}

const HEADER: &str = "[[environments]]";

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Value {
        Value::String(value.to_owned())
    }

    #[test]
    fn environment_is_appended_to_existing_text() {
        let keys = [("id", text("a")), ("url", text("ws://\"h\"\n"))];
        assert_eq!(appended("", &keys[..1]), "[[environments]]\nid = \"a\"\n");
        let added = appended("# mine\ninclude_local = true", &keys);
        assert!(
            added.starts_with("# mine\ninclude_local = true\n\n[[environments]]\n"),
            "{added}"
        );
        let parsed: toml::Table = added.parse().unwrap();
        assert_eq!(parsed["environments"][0]["url"], text("ws://\"h\"\n"));
    }

    #[test]
    fn default_is_replaced_in_place() {
        for (before, after) in [
            ("", "default = \"b\"\n"),
            (
                "# x\n[[environments]]\n",
                "default = \"b\"\n# x\n[[environments]]\n",
            ),
            (
                "# x\ndefault='a' # y\ninclude_local = true\n",
                "# x\ndefault = \"b\" # y\ninclude_local = true\n",
            ),
        ] {
            assert_eq!(with_default(before, "b"), after);
        }
    }

    #[test]
    fn only_the_named_environment_is_removed() {
        let before = "# top\ndefault = 'b'\n\n[[environments]]\nid = 'a'\n[environments.skills]\n\
                      required = []\n\n# about b\n[[environments]] # b\nid = 'b'\n";
        assert_eq!(
            without(before, 0).unwrap(),
            "# top\ndefault = 'b'\n\n# about b\n[[environments]] # b\nid = 'b'\n"
        );
        assert_eq!(
            without(before, 1).unwrap(),
            "# top\ndefault = 'b'\n\n[[environments]]\nid = 'a'\n[environments.skills]\n\
             required = []\n\n# about b\n"
        );
        assert_eq!(without(before, 2), None);
        assert_eq!(without("environments = [{ id = 'a' }]\n", 0), None);
    }
}

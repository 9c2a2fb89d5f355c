//! Sources of settings: environment variables, injected for tests, and small files.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

/// Returns the value of an environment variable, like `std::env::var_os`.
pub type VariableLookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Returns our settings directory: `EXEC_SERVER_HOME`, else `exec-server` in `XDG_CONFIG_HOME` or
/// `~/.config`.
pub fn config_directory(lookup: VariableLookup<'_>) -> Option<PathBuf> {
    path(lookup, "EXEC_SERVER_HOME").or_else(|| {
        // The XDG specification ignores relative paths.
        let base = path(lookup, "XDG_CONFIG_HOME").filter(|base| base.is_absolute());
        let base = base.or_else(|| Some(path(lookup, "HOME")?.join(".config")));
        Some(base?.join("exec-server"))
    })
}

/// Returns the directory with the approval records of `exec-server use`: one file per directory.
pub fn allowed_directories(lookup: VariableLookup<'_>) -> Option<PathBuf> {
    Some(config_directory(lookup)?.join("allowed"))
}

/// Returns the path in a variable. An empty variable counts as not set.
pub fn path(lookup: VariableLookup<'_>, variable: &str) -> Option<PathBuf> {
    lookup(variable)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Returns the trimmed text of a variable. A blank variable counts as not set.
///
/// # Errors
/// When the variable is not valid UTF-8.
pub fn text(
    lookup: VariableLookup<'_>,
    variable: &'static str,
) -> Result<Option<String>, NotUtf8Error> {
    let text = lookup(variable).map(OsString::into_string).transpose();
    let text = text.map_err(|_| NotUtf8Error(variable))?;
    let text = text.map(|text| text.trim().to_owned());
    Ok(text.filter(|text| !text.is_empty()))
}

/// Caller: an environment variable is not valid UTF-8.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("environment variable {0}: expected text in UTF-8")]
pub struct NotUtf8Error(pub &'static str);

/// Returns the duration of a number of `ms`, `s`, `m`, `h`, `d` or `w`. Returns `None` for another
/// unit, a negative number, or more than a hundred years: the rest can be added to any clock
/// reading.
pub fn duration(number: f64, unit: &str) -> Option<Duration> {
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "w" => 604_800.0,
        _ => return None,
    };
    let span = Duration::try_from_secs_f64(number * seconds).ok()?;
    (span.as_secs_f64() <= MAX_SECONDS).then_some(span)
}

const MAX_SECONDS: f64 = 100.0 * 366.0 * 86_400.0;

/// Duration in seconds with an optional fraction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Seconds(pub Duration);

impl FromStr for Seconds {
    type Err = SecondsParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let seconds = text.parse().map_err(|_| SecondsParseError)?;
        duration(seconds, "s").map(Self).ok_or(SecondsParseError)
    }
}

/// Caller: invalid duration.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected seconds from 0 to {MAX_SECONDS}, such as 30 or 0.5")]
pub struct SecondsParseError;

/// Maximum file size: far above any configuration or secret, and far below what a device file would
/// yield.
const LIMIT: u64 = 1024 * 1024;

/// Reads a whole file. Accepts pipes, so that a shell can pass a secret without a file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(LIMIT + 1).read_to_end(&mut bytes)?;
    if read as u64 > LIMIT {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "file is larger than 1 MiB",
        ));
    }
    Ok(bytes)
}

/// Reads a whole file as UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "file is not UTF-8 text"))
}

/// The Codex home: `CODEX_HOME`, else `.codex` in the account's home.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CodexHome(PathBuf);

impl CodexHome {
    /// Finds the directory. An empty variable counts as not set.
    pub fn find(lookup: VariableLookup<'_>) -> Option<Self> {
        let path = |name| lookup(name).filter(|value| !value.is_empty());
        path("CODEX_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(path("HOME")?).join(".codex")))
            .map(Self)
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_have_a_fraction() {
        let spans = [
            ("0", Duration::ZERO),
            ("30", Duration::from_secs(30)),
            ("0.25", Duration::from_millis(250)),
            ("1e3", Duration::from_secs(1000)),
            ("3162240000", Duration::from_secs(3_162_240_000)),
        ];
        for (text, span) in spans {
            assert_eq!(text.parse(), Ok(Seconds(span)), "{text}");
        }
        for text in [
            "",
            "-1",
            "30s",
            "nan",
            "inf",
            "1e300",
            "3162240001",
            "0x10",
            "1,5",
        ] {
            assert_eq!(text.parse::<Seconds>(), Err(SecondsParseError), "{text}");
        }
    }
}

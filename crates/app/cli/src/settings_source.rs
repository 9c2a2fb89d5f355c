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

/// Duration in seconds with an optional fraction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Seconds(pub Duration);

impl Seconds {
    /// Maximum, a hundred years: it can be added to any clock reading.
    const MAX: u64 = 100 * 366 * 24 * 60 * 60;
}

impl FromStr for Seconds {
    type Err = SecondsParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let seconds = text.parse().map_err(|_| SecondsParseError)?;
        let span = Duration::try_from_secs_f64(seconds).map_err(|_| SecondsParseError)?;
        if span > Duration::from_secs(Self::MAX) {
            return Err(SecondsParseError);
        }
        Ok(Self(span))
    }
}

/// Caller: invalid duration.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected seconds from 0 to {}, such as 30 or 0.5", Seconds::MAX)]
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
            ("3162240000", Duration::from_secs(Seconds::MAX)),
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

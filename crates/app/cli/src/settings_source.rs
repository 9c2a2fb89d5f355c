//! Sources of settings: environment variables, injected for tests, small files, and a token in a
//! file that may be replaced at any time.

use std::{
    ffi::OsString,
    fmt,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use exec_registry::credentials::{
    CredentialError, Credentials, RegistryBearer, RegistryToken, RegistryTokenError, SecretScope,
};
use futures_util::future::{BoxFuture, FutureExt};
use http::HeaderMap;
use tokio::task::spawn_blocking;

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

/// Presents the token in a file, read for each request. While the file is unreadable or invalid,
/// presents the last valid token: a replacement may be in progress.
pub struct TokenFile {
    path: PathBuf,
    last: Mutex<RegistryToken>,
}

impl TokenFile {
    /// Reads the file for the first time. Blocks.
    pub fn open(path: &Path) -> Result<Self, TokenFileError> {
        let token = read_token(path)?;
        Ok(Self {
            path: path.to_owned(),
            last: Mutex::new(token),
        })
    }

    async fn token(&self) -> RegistryToken {
        let path = self.path.clone();
        let read = spawn_blocking(move || read_token(&path)).await;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(Ok(token)) => *last = token,
            Ok(Err(error)) => tracing::warn!(%error, "ignoring invalid token file"),
            Err(error) => tracing::warn!(%error, "failed to read token file"),
        }
        last.clone()
    }
}

impl Credentials for TokenFile {
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>> {
        async { RegistryBearer::new(self.token().await).headers().await }.boxed()
    }

    fn secret_scope(&self) -> SecretScope {
        SecretScope::Private
    }
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenFile")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

fn read_token(path: &Path) -> Result<RegistryToken, TokenFileError> {
    let text = read_text(path).map_err(|source| TokenFileError::Read {
        path: path.to_owned(),
        source,
    })?;
    RegistryToken::new(&text).map_err(|source| TokenFileError::Token {
        path: path.to_owned(),
        source,
    })
}

/// Caller: the file holds no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenFileError {
    /// The file cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The content is not a valid token.
    #[error("`{}` has no token", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: RegistryTokenError,
    },
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

    async fn presented(file: &TokenFile) -> String {
        let headers = file.headers().await.unwrap();
        headers["authorization"].to_str().unwrap().to_owned()
    }

    #[tokio::test]
    async fn replaced_token_is_used_and_invalid_file_is_ignored() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("token");
        std::fs::write(&path, "one\n").unwrap();
        let file = TokenFile::open(&path).unwrap();
        assert_eq!(presented(&file).await, "Bearer one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(presented(&file).await, "Bearer two");
        std::fs::write(&path, "").unwrap();
        assert_eq!(presented(&file).await, "Bearer two");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(presented(&file).await, "Bearer two");
        assert!(!format!("{file:?}").contains("two"));
    }

    #[test]
    fn file_without_token_is_rejected_with_its_path() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("token");
        assert!(matches!(
            TokenFile::open(&path),
            Err(TokenFileError::Read { .. })
        ));
        std::fs::write(&path, " \n").unwrap();
        let error = TokenFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("token` has no token"), "{error}");
    }
}

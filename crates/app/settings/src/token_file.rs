//! A registry token in a file that may be replaced at any time.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use exec_registry::credentials::{
    CredentialError, Credentials, RegistryToken, RegistryTokenError, SecretScope,
};
use futures_util::future::{BoxFuture, FutureExt};
use http::HeaderMap;
use tokio::task::spawn_blocking;

use crate::settings_source::read_text;

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
        async { Ok(self.token().await.headers()) }.boxed()
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

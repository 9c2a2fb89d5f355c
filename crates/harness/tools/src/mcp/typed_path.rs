//! Paths as agents type them: relative, absolute, `~/x`, or a `file:` URI.

use exec_wire::path_uri::{PathJoinError, PathUri, PathUriError};

/// Caller: the path cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum TypedPathError {
    #[error("path: {0}")]
    Join(#[from] PathJoinError),
    #[error("path `{0}`: {1}")]
    Uri(String, PathUriError),
    #[error("`{0}` is an address, not a path")]
    Address(String),
    #[error("`{0}`: the home directory is not known here: write an absolute path")]
    NoHome(String),
    #[error(
        "`{0}` stands for the home of another account: write an absolute path, or `./{0}` for a name"
    )]
    OtherHome(String),
    #[error("`{0}` names a directory, not a file")]
    Directory(String),
}

/// Base directories for parsing paths.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathBase<'a> {
    /// Base of relative paths.
    pub(super) root: &'a PathUri,
    /// Directory that `~` stands for.
    pub(super) home: Option<&'a PathUri>,
}

impl PathBase<'_> {
    /// Parses a path.
    pub(super) fn path(&self, typed: &str) -> Result<PathUri, TypedPathError> {
        if let Some((scheme, _)) = typed.split_once("://")
            && is_scheme(scheme)
        {
            if !scheme.eq_ignore_ascii_case("file") {
                return Err(TypedPathError::Address(typed.to_owned()));
            }
            return PathUri::parse(typed)
                .map_err(|error| TypedPathError::Uri(typed.to_owned(), error));
        }
        let Some(behind) = typed.strip_prefix('~') else {
            return Ok(self.root.join(typed)?);
        };
        if !behind.is_empty() && !behind.starts_with('/') {
            let first = typed.split('/').next().unwrap_or(typed);
            return Err(TypedPathError::OtherHome(first.to_owned()));
        }
        let home = self.home;
        let home = home.ok_or_else(|| TypedPathError::NoHome(typed.to_owned()))?;
        Ok(home.join(behind.trim_start_matches('/'))?)
    }

    /// Parses the path of a file. Rejects paths that can only be directories.
    pub(super) fn file(&self, typed: &str) -> Result<PathUri, TypedPathError> {
        let path = self.path(typed)?;
        let is_windows = path
            .convention()
            .is_some_and(|convention| convention.is_windows());
        let separator = |character| character == '/' || (is_windows && character == '\\');
        let last = typed.rsplit(separator).next().unwrap_or(typed);
        if matches!(last, "" | "." | ".." | "~") || path.file_name().is_none() {
            return Err(TypedPathError::Directory(typed.to_owned()));
        }
        Ok(path)
    }
}

/// Returns whether text is a URI scheme. A single letter is a drive.
fn is_scheme(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    text.len() > 1
        && text.bytes().all(is_part)
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> PathUri {
        PathUri::parse(text).unwrap()
    }

    #[test]
    fn relative_absolute_home_and_uri_paths_resolve() {
        let (root, home) = (uri("file:///srv"), uri("file:///home/me"));
        let base = PathBase {
            root: &root,
            home: Some(&home),
        };
        for (typed, expected) in [
            ("a b", "file:///srv/a%20b"),
            ("/a%20b", "file:///a%2520b"),
            ("~", "file:///home/me"),
            ("~/x", "file:///home/me/x"),
            ("~//x", "file:///home/me/x"),
            ("./~", "file:///srv/~"),
            ("a/~/b", "file:///srv/a/~/b"),
            ("file:///a%20b", "file:///a%20b"),
            ("FILE:///a", "file:///a"),
        ] {
            assert_eq!(base.path(typed).unwrap(), uri(expected), "{typed}");
        }
        let unknown = PathBase { home: None, ..base };
        assert_eq!(
            unknown.path("~/x"),
            Err(TypedPathError::NoHome("~/x".to_owned()))
        );
        for typed in [
            "~/",
            "~",
            "/",
            "a/",
            "a/..",
            ".",
            "",
            "file:///",
            "file:///a/",
        ] {
            let refused = Err(TypedPathError::Directory(typed.to_owned()));
            assert_eq!(base.file(typed), refused, "{typed}");
        }
    }
}

//! Globs over the paths below a root.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use exec_env::filesystem::FileError;
use exec_wire::limits;
use globset::{GlobBuilder, GlobSet};

/// A glob. `*` and `?` stop at a slash, `**` does not; a glob without a slash names files at any
/// depth, and one that begins with a slash names them from the root. Bytes match as they are.
#[derive(Debug)]
pub(crate) struct PathGlob {
    set: GlobSet,
    scope: Scope,
}

/// What a glob is held against.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Scope {
    Path,
    FileName,
}

impl PathGlob {
    /// Compiles a glob.
    ///
    /// # Errors
    /// Refuses what is too long or broken.
    pub(crate) fn new(glob: &str) -> Result<Self, FileError> {
        check_length("glob", glob)?;
        let scope = if glob.contains('/') {
            Scope::Path
        } else {
            Scope::FileName
        };
        let anchored = glob.strip_prefix('/').unwrap_or(glob);
        let broken = |error: globset::Error| {
            FileError::Refused(format!("glob cannot be used: {}", error.kind()))
        };
        let compiled = GlobBuilder::new(anchored)
            .literal_separator(true)
            .build()
            .map_err(broken)?;
        let set = GlobSet::builder().add(compiled).build().map_err(broken)?;
        Ok(Self { set, scope })
    }

    /// Tells whether a path below the root matches.
    pub(crate) fn is_match(&self, below: &[u8]) -> bool {
        let text = match self.scope {
            Scope::Path => below,
            Scope::FileName => file_name(below),
        };
        self.set.is_match(Path::new(OsStr::from_bytes(text)))
    }
}

/// Returns the last name of a path.
pub(crate) fn file_name(below: &[u8]) -> &[u8] {
    let slash = below.iter().rposition(|&byte| byte == b'/');
    below
        .get(slash.map_or(0, |slash| slash + 1)..)
        .unwrap_or_default()
}

/// Refuses text that is too long to be looked for.
pub(crate) fn check_length(what: &str, text: &str) -> Result<(), FileError> {
    if text.len() > limits::MAX_PATTERN_BYTES {
        let most = limits::MAX_PATTERN_BYTES;
        let text = format!("{what} is longer than {most} bytes");
        return Err(FileError::Refused(text));
    }
    Ok(())
}

//! The directory with the settings of a Codex installation.

use std::path::{Path, PathBuf};

use crate::settings_source::Lookup;

/// The Codex home: `CODEX_HOME`, or else `.codex` in the home of the account.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CodexHome(PathBuf);

impl CodexHome {
    /// Finds it. A variable that is set to nothing counts as not set.
    pub fn find(lookup: Lookup<'_>) -> Option<Self> {
        let path = |name| lookup(name).filter(|value| !value.is_empty());
        path("CODEX_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(path("HOME")?).join(".codex")))
            .map(Self)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

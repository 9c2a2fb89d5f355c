//! What a file is called without links, also one that is not there yet.

use exec_env::filesystem::FileError;
use exec_wire::{fs::Canonicalize, path_uri::PathUri};

use crate::mcp::{answer::Complaint, work::Work};

/// A path without links, as far as it exists.
#[derive(Clone, Debug)]
pub(super) struct Resolved {
    pub(super) path: PathUri,
    /// Directories that are missing above it, the deepest one first.
    pub(super) missing: Vec<PathUri>,
}

/// Resolves the links of a path up to the first name that is not there.
pub(super) async fn resolved(work: &Work, path: &PathUri) -> Result<Resolved, Complaint> {
    let (mut at, mut names, mut missing) = (path.clone(), Vec::new(), Vec::new());
    loop {
        let canonical = work.files().canonicalize(Canonicalize {
            path: at.clone(),
            sandbox: work.sandbox(),
        });
        match canonical.await {
            Ok(mut path) => {
                while let Some(name) = names.pop() {
                    let name: String = name;
                    path = path
                        .join(&name)
                        .map_err(|error| Complaint(format!("path: {error}")))?;
                }
                return Ok(Resolved { path, missing });
            }
            Err(FileError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
        if at != *path {
            missing.push(at.clone());
        }
        let name = at.file_name().and_then(|name| String::from_utf8(name).ok());
        let (Some(name), Some(parent)) = (name, at.parent()) else {
            // Nothing exists above it, or its name is no text: it is taken as it is written.
            let path = path.clone();
            return Ok(Resolved { path, missing });
        };
        names.push(name);
        at = parent;
    }
}

//! What content may take the place of.
//! Invariant: only a file is ever replaced. A link stays a link, and the file behind it gets the content.

use exec_env::filesystem::FileError;
use exec_wire::{fs::Canonicalize, path_uri::PathUri};

use super::side::Side;
use crate::command::{
    failure::{Failure, FailureKind},
    files::{file_failure, leads_nowhere, look, persist},
};

/// What is at a target.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Landing {
    /// Nothing.
    Free(PathUri),
    /// A file; where it really is, if a link leads to it.
    File(PathUri),
    /// A directory, perhaps behind a link.
    Directory(PathUri),
}

impl Landing {
    /// Looks at a target. What is neither file nor directory is refused.
    pub(super) async fn find(side: &Side, path: PathUri) -> Result<Self, Failure> {
        let failed = |error: FileError| file_failure(&error);
        let refused = |why: &str| {
            let what = format!("`{}` {why}", side.shows(&path));
            Failure::new(FailureKind::Failed, what)
        };
        let found = look(&*side.files, &path).await.map_err(failed)?;
        let Some(found) = found else {
            let is_dead = leads_nowhere(&*side.files, &path).await.map_err(failed)?;
            return match is_dead {
                true => Err(refused("is a link that leads nowhere")
                    .next("remove it, or name the file that it should lead to")),
                false => Ok(Self::Free(path)),
            };
        };
        if found.is_directory {
            return Ok(Self::Directory(path));
        }
        if !found.is_file {
            return Err(refused("is neither a file nor a directory").next("name another target"));
        }
        if !found.is_symlink {
            return Ok(Self::File(path));
        }
        let canonicalize = Canonicalize {
            path: path.clone(),
            sandbox: None,
        };
        let real = persist(|| side.files.canonicalize(canonicalize.clone())).await;
        real.map(Self::File).map_err(failed)
    }

    /// Returns where a file goes.
    pub(super) fn for_file(self, side: &Side) -> Result<PathUri, Failure> {
        match self {
            Self::Free(path) | Self::File(path) => Ok(path),
            Self::Directory(path) => {
                let shown = side.shows(&path);
                let what = format!("`{shown}` is a directory, and a file cannot replace it");
                Err(Failure::new(FailureKind::Failed, what).next("name another target"))
            }
        }
    }
}

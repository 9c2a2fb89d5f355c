//! As much of git as trust needs: where a repository is, and whose worktree a directory is.

use exec_wire::path_uri::PathUri;

use crate::catalog::reader::{Read, Reader};

/// What marks a repository: a directory, or in a worktree a file.
pub(super) const DIRECTORY: &str = ".git";

/// Largest file of git's that is read: each holds one path.
const MAX_FILE_BYTES: u64 = 16 << 10;

/// Tells whether a repository or a worktree begins here. An empty `.git` is neither.
pub(super) async fn is_repository(reader: &Reader, directory: &PathUri) -> bool {
    let Ok(git) = directory.join(DIRECTORY) else {
        return false;
    };
    match reader.metadata(&git).await {
        Ok(found) if found.is_directory => match git.join("HEAD") {
            Ok(head) => reader.metadata(&head).await.is_ok(),
            Err(_) => false,
        },
        Ok(found) => found.is_file,
        Err(_) => false,
    }
}

/// Finds the repository that a directory belongs to; for a worktree, the one that it is a worktree of.
pub(super) async fn main_repository(reader: &Reader, cwd: &PathUri) -> Option<PathUri> {
    let mut directory = Some(cwd.clone());
    while let Some(here) = directory {
        if is_repository(reader, &here).await {
            let git = here.join(DIRECTORY).ok()?;
            let is_file = reader.metadata(&git).await.ok()?.is_file;
            if is_file {
                return worktree_of(reader, &here, &git).await;
            }
            return Some(here);
        }
        directory = here.parent();
    }
    None
}

/// Follows a worktree's `.git` to its repository. Both must name each other: anybody can write a file
/// that names a repository which the account trusts.
async fn worktree_of(reader: &Reader, worktree: &PathUri, git: &PathUri) -> Option<PathUri> {
    let text = line(reader, git).await?;
    let private = resolve(reader, worktree, text.strip_prefix("gitdir:")?.trim()).await?;
    let common = line(reader, &private.join("commondir").ok()?).await?;
    let common = resolve(reader, &private, &common).await?;
    let back = line(reader, &private.join("gitdir").ok()?).await?;
    let back = resolve(reader, &private, &back).await?;
    let is_known = private.parent()? == common.join("worktrees").ok()?
        && back == reader.canonicalize(git).await?
        && common.file_name()? == DIRECTORY.as_bytes();
    is_known.then(|| common.parent()).flatten()
}

async fn resolve(reader: &Reader, base: &PathUri, text: &str) -> Option<PathUri> {
    reader.canonicalize(&base.join(text).ok()?).await
}

async fn line(reader: &Reader, path: &PathUri) -> Option<String> {
    match reader.text(path, MAX_FILE_BYTES).await {
        Read::Text(text) => Some(text.trim().to_owned()),
        Read::Missing | Read::Refused(_) => None,
    }
}

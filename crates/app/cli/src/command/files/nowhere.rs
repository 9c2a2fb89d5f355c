//! Links that lead nowhere, which look as if nothing were there.

use exec_env::filesystem::{ExecutorFileSystem, FileError};
use exec_wire::{
    fs::{Canonicalize, GetMetadata},
    path_uri::PathUri,
};

use super::{cut::persist, shown::below};

/// Tells whether a path at which nothing was found is a link that leads nowhere.
pub(crate) async fn leads_nowhere(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
) -> Result<bool, FileError> {
    // Only the last name is in question: those before it may well be links.
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(false);
    };
    let canonicalize = Canonicalize {
        path: parent,
        sandbox: None,
    };
    let parent = match persist(|| files.canonicalize(canonicalize.clone())).await {
        Ok(parent) => parent,
        Err(error @ FileError::Disconnected(_)) => return Err(error),
        Err(_) => return Ok(false),
    };
    let Some(path) = below(&parent, &name) else {
        return Ok(false);
    };
    let get = GetMetadata {
        path,
        follow_symlinks: Some(false),
        sandbox: None,
    };
    match persist(|| files.metadata(get.clone())).await {
        // What is not followed is refused.
        Err(FileError::Invalid(_)) => Ok(true),
        Err(error @ FileError::Disconnected(_)) => Err(error),
        Ok(_) | Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use exec_local::filesystem::LocalFileSystem;

    use super::*;

    #[tokio::test]
    async fn a_link_to_nothing_is_told_from_nothing() {
        let directory = tempfile::tempdir().unwrap();
        symlink("none", directory.path().join("dead")).unwrap();
        symlink(".", directory.path().join("way")).unwrap();
        std::fs::write(directory.path().join("file"), "").unwrap();
        let files = LocalFileSystem::default();
        for (name, dead) in [
            ("dead", true),
            ("way/dead", true),
            ("none", false),
            ("none/dead", false),
            ("file", false),
        ] {
            let path = PathUri::from_native(&directory.path().join(name)).unwrap();
            assert_eq!(leads_nowhere(&files, &path).await, Ok(dead), "{name}");
        }
    }
}

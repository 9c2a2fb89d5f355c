//! Paths without links.

use std::fs;

use exec_env::filesystem::FileError;
use exec_wire::{fs::Canonicalize, path_uri::PathUri};

use crate::{
    error::failed,
    native::{native, uri},
};

/// Resolves every link of a path that exists.
///
/// # Errors
/// Fails if it does not exist, or if the way to it may not be looked at.
pub fn canonicalize(request: &Canonicalize) -> Result<PathUri, FileError> {
    let path = native(&request.path)?;
    let real = fs::canonicalize(&path).map_err(|error| failed("resolve", &path, error))?;
    uri(&real)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scratch::{self, Outcome, Scratch, odd_name, outcome};

    fn resolved(path: &Path) -> Result<PathUri, FileError> {
        let path = scratch::uri(path);
        canonicalize(&Canonicalize {
            path,
            sandbox: None,
        })
    }

    #[test]
    fn every_link_is_resolved() {
        let scratch = Scratch::new();
        let real = fs::canonicalize(scratch.directory("real")).unwrap();
        let file = scratch.file(Path::new("real").join(odd_name()), "");
        scratch.link("above", "real");
        let link = scratch.link("link", Path::new("above").join(odd_name()));
        let expected = scratch::uri(real.join(odd_name()));
        for path in [&file, &link, &scratch.path("above").join(odd_name())] {
            assert_eq!(resolved(path), Ok(expected.clone()));
        }
        assert_eq!(resolved(Path::new("/")), Ok(scratch::uri("/")));
    }

    #[test]
    fn only_what_exists_can_be_resolved() {
        let scratch = Scratch::new();
        let file = scratch.file("file", "");
        let dangling = scratch.link("dangling", "nowhere");
        let circle = scratch.link("circle", "circle");
        assert_eq!(outcome(resolved(&scratch.path("none"))), Outcome::NotFound);
        assert_eq!(outcome(resolved(&dangling)), Outcome::NotFound);
        assert_eq!(outcome(resolved(&circle)), Outcome::Host);
        assert_eq!(outcome(resolved(&file.join("x"))), Outcome::Host);
    }
}

//! File requests by native path, with default options.

use std::path::{Path, PathBuf};

use exec_env::filesystem::{MissingPathsRequest, OpenFileRequest, WatchDepth, WatchPathRequest};
use exec_wire::{
    fs::{
        CanonicalizePath, CopyPath, CreateDirectory, FindPaths, GetMetadata, OpenMode,
        ReadDirectory, ReadFile, RemovePath, RenamePath, SearchText, WalkOptions, WalkTree,
        WriteFile,
    },
    limits,
    path_uri::PathUri,
};

use crate::subject::uri;

/// Path of a request: native or a URI.
pub(crate) trait ToPathUri {
    fn uri(&self) -> PathUri;
}

impl ToPathUri for Path {
    fn uri(&self) -> PathUri {
        uri(self)
    }
}

impl ToPathUri for PathBuf {
    fn uri(&self) -> PathUri {
        uri(self)
    }
}

impl ToPathUri for PathUri {
    fn uri(&self) -> PathUri {
        self.clone()
    }
}

pub(crate) fn read(path: &(impl ToPathUri + ?Sized)) -> ReadFile {
    ReadFile {
        path: path.uri(),
        follow_symlinks: None,
        sandbox: None,
    }
}

pub(crate) fn write(path: &(impl ToPathUri + ?Sized)) -> WriteFile {
    WriteFile {
        path: path.uri(),
        data_base64: None,
        follow_symlinks: None,
        create_parents: false,
        atomic: false,
        mode: None,
        sandbox: None,
    }
}

pub(crate) fn create(path: &(impl ToPathUri + ?Sized)) -> CreateDirectory {
    CreateDirectory {
        path: path.uri(),
        recursive: None,
        follow_symlinks: None,
        sandbox: None,
    }
}

pub(crate) fn metadata(path: &(impl ToPathUri + ?Sized)) -> GetMetadata {
    GetMetadata {
        path: path.uri(),
        follow_symlinks: None,
        details: false,
        sandbox: None,
    }
}

pub(crate) fn canonicalize(path: &(impl ToPathUri + ?Sized)) -> CanonicalizePath {
    CanonicalizePath {
        path: path.uri(),
        sandbox: None,
    }
}

pub(crate) fn list(path: &(impl ToPathUri + ?Sized)) -> ReadDirectory {
    ReadDirectory::new(path.uri())
}

/// Walk limits at their maximum.
pub(crate) const UNLIMITED_WALK: WalkOptions = WalkOptions {
    max_depth: limits::MAX_WALK_DEPTH,
    max_directories: limits::MAX_WALK_DIRECTORIES,
    max_entries: limits::MAX_WALK_ENTRIES,
    follow_directory_symlinks: false,
    prune_hidden_directories: false,
};

pub(crate) fn walk(path: &(impl ToPathUri + ?Sized), options: WalkOptions) -> WalkTree {
    WalkTree {
        path: path.uri(),
        options,
        sandbox: None,
    }
}

pub(crate) fn remove(path: &(impl ToPathUri + ?Sized)) -> RemovePath {
    RemovePath {
        path: path.uri(),
        recursive: None,
        force: None,
        follow_symlinks: None,
        sandbox: None,
    }
}

/// Builds a non-recursive copy.
pub(crate) fn copy(
    source: &(impl ToPathUri + ?Sized),
    destination: &(impl ToPathUri + ?Sized),
) -> CopyPath {
    CopyPath {
        source_path: source.uri(),
        destination_path: destination.uri(),
        recursive: false,
        sandbox: None,
    }
}

/// Builds a recursive copy.
pub(crate) fn copy_tree(
    source: &(impl ToPathUri + ?Sized),
    destination: &(impl ToPathUri + ?Sized),
) -> CopyPath {
    CopyPath {
        recursive: true,
        ..copy(source, destination)
    }
}

/// Builds a rename that does not replace.
pub(crate) fn rename(
    source: &(impl ToPathUri + ?Sized),
    destination: &(impl ToPathUri + ?Sized),
) -> RenamePath {
    RenamePath {
        source_path: source.uri(),
        destination_path: destination.uri(),
        overwrite: false,
        sandbox: None,
    }
}

pub(crate) fn open(path: &(impl ToPathUri + ?Sized), mode: OpenMode) -> OpenFileRequest {
    OpenFileRequest {
        path: path.uri(),
        mode,
        sandbox: None,
    }
}

/// Builds a search for plain text.
pub(crate) fn search(path: &(impl ToPathUri + ?Sized), pattern: &str) -> SearchText {
    SearchText {
        path: path.uri(),
        pattern: pattern.to_owned(),
        regex: false,
        case_sensitive: true,
        glob: None,
        max_matches: limits::DEFAULT_SEARCH_MATCHES,
        context_lines: 0,
        sandbox: None,
    }
}

/// Builds a search for a regular expression.
pub(crate) fn search_regex(path: &(impl ToPathUri + ?Sized), pattern: &str) -> SearchText {
    SearchText {
        regex: true,
        ..search(path, pattern)
    }
}

/// Builds a find by glob.
pub(crate) fn find(path: &(impl ToPathUri + ?Sized), glob: &str) -> FindPaths {
    FindPaths {
        path: path.uri(),
        glob: Some(glob.to_owned()),
        query: None,
        max_results: limits::DEFAULT_FIND_RESULTS,
        sandbox: None,
    }
}

/// Builds a find by fuzzy query.
pub(crate) fn find_query(path: &(impl ToPathUri + ?Sized), query: &str) -> FindPaths {
    FindPaths {
        glob: None,
        query: Some(query.to_owned()),
        ..find(path, "")
    }
}

pub(crate) fn watch(path: &(impl ToPathUri + ?Sized), depth: WatchDepth) -> WatchPathRequest {
    WatchPathRequest {
        path: path.uri(),
        depth,
        sandbox: None,
    }
}

pub(crate) fn missing(missing: &[&Path], present: Option<&Path>) -> MissingPathsRequest {
    MissingPathsRequest {
        missing: missing.iter().map(|path| uri(path)).collect(),
        present: present.map(uri),
        sandbox: None,
    }
}

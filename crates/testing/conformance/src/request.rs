//! File requests by native path, with default options.

use std::path::{Path, PathBuf};

use exec_env::filesystem::{MissingPaths, Open, WatchDepth, WatchPath};
use exec_wire::{
    fs::{
        Canonicalize, Copy, CreateDirectory, Find, GetMetadata, OpenMode, ReadDirectory, ReadFile,
        Remove, Rename, Search, Walk, WalkOptions, WriteFile,
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
        sandbox: None,
    }
}

pub(crate) fn canonicalize(path: &(impl ToPathUri + ?Sized)) -> Canonicalize {
    Canonicalize {
        path: path.uri(),
        sandbox: None,
    }
}

pub(crate) fn list(path: &(impl ToPathUri + ?Sized)) -> ReadDirectory {
    ReadDirectory {
        path: path.uri(),
        sandbox: None,
    }
}

/// Walk limits at their maximum.
pub(crate) const UNLIMITED_WALK: WalkOptions = WalkOptions {
    max_depth: limits::MAX_WALK_DEPTH,
    max_directories: limits::MAX_WALK_DIRECTORIES,
    max_entries: limits::MAX_WALK_ENTRIES,
    follow_directory_symlinks: false,
    prune_hidden_directories: false,
};

pub(crate) fn walk(path: &(impl ToPathUri + ?Sized), options: WalkOptions) -> Walk {
    Walk {
        path: path.uri(),
        options,
        sandbox: None,
    }
}

pub(crate) fn remove(path: &(impl ToPathUri + ?Sized)) -> Remove {
    Remove {
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
) -> Copy {
    Copy {
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
) -> Copy {
    Copy {
        recursive: true,
        ..copy(source, destination)
    }
}

/// Builds a rename that does not replace.
pub(crate) fn rename(
    source: &(impl ToPathUri + ?Sized),
    destination: &(impl ToPathUri + ?Sized),
) -> Rename {
    Rename {
        source_path: source.uri(),
        destination_path: destination.uri(),
        overwrite: false,
        sandbox: None,
    }
}

pub(crate) fn open(path: &(impl ToPathUri + ?Sized), mode: OpenMode) -> Open {
    Open {
        path: path.uri(),
        mode,
        sandbox: None,
    }
}

/// Builds a search for plain text.
pub(crate) fn search(path: &(impl ToPathUri + ?Sized), pattern: &str) -> Search {
    Search {
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
pub(crate) fn search_regex(path: &(impl ToPathUri + ?Sized), pattern: &str) -> Search {
    Search {
        regex: true,
        ..search(path, pattern)
    }
}

/// Builds a find by glob.
pub(crate) fn find(path: &(impl ToPathUri + ?Sized), glob: &str) -> Find {
    Find {
        path: path.uri(),
        glob: Some(glob.to_owned()),
        query: None,
        max_results: limits::DEFAULT_FIND_RESULTS,
        sandbox: None,
    }
}

/// Builds a find by fuzzy query.
pub(crate) fn find_query(path: &(impl ToPathUri + ?Sized), query: &str) -> Find {
    Find {
        glob: None,
        query: Some(query.to_owned()),
        ..find(path, "")
    }
}

pub(crate) fn watch(path: &(impl ToPathUri + ?Sized), depth: WatchDepth) -> WatchPath {
    WatchPath {
        path: path.uri(),
        depth,
        sandbox: None,
    }
}

pub(crate) fn missing(missing: &[&Path], present: Option<&Path>) -> MissingPaths {
    MissingPaths {
        missing: missing.iter().map(|path| uri(path)).collect(),
        present: present.map(uri),
        sandbox: None,
    }
}

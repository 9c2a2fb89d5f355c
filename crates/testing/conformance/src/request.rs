//! Requests of files by native paths, with everything else left at its default.

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

/// A path of a request: a native one, or a URI.
pub(crate) trait Named {
    fn uri(&self) -> PathUri;
}

impl Named for Path {
    fn uri(&self) -> PathUri {
        uri(self)
    }
}

impl Named for PathBuf {
    fn uri(&self) -> PathUri {
        uri(self)
    }
}

impl Named for PathUri {
    fn uri(&self) -> PathUri {
        self.clone()
    }
}

pub(crate) fn read(path: &(impl Named + ?Sized)) -> ReadFile {
    ReadFile {
        path: path.uri(),
        follow_symlinks: None,
        sandbox: None,
    }
}

pub(crate) fn write(path: &(impl Named + ?Sized)) -> WriteFile {
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

pub(crate) fn create(path: &(impl Named + ?Sized)) -> CreateDirectory {
    CreateDirectory {
        path: path.uri(),
        recursive: None,
        follow_symlinks: None,
        sandbox: None,
    }
}

pub(crate) fn metadata(path: &(impl Named + ?Sized)) -> GetMetadata {
    GetMetadata {
        path: path.uri(),
        follow_symlinks: None,
        sandbox: None,
    }
}

pub(crate) fn canonicalize(path: &(impl Named + ?Sized)) -> Canonicalize {
    Canonicalize {
        path: path.uri(),
        sandbox: None,
    }
}

pub(crate) fn list(path: &(impl Named + ?Sized)) -> ReadDirectory {
    ReadDirectory {
        path: path.uri(),
        sandbox: None,
    }
}

/// As far as a walk may go.
pub(crate) const FAR: WalkOptions = WalkOptions {
    max_depth: limits::MAX_WALK_DEPTH,
    max_directories: limits::MAX_WALK_DIRECTORIES,
    max_entries: limits::MAX_WALK_ENTRIES,
    follow_directory_symlinks: false,
    prune_hidden_directories: false,
};

pub(crate) fn walk(path: &(impl Named + ?Sized), options: WalkOptions) -> Walk {
    Walk {
        path: path.uri(),
        options,
        sandbox: None,
    }
}

pub(crate) fn remove(path: &(impl Named + ?Sized)) -> Remove {
    Remove {
        path: path.uri(),
        recursive: None,
        force: None,
        follow_symlinks: None,
        sandbox: None,
    }
}

/// Copies without what is below a directory.
pub(crate) fn copy(source: &(impl Named + ?Sized), destination: &(impl Named + ?Sized)) -> Copy {
    Copy {
        source_path: source.uri(),
        destination_path: destination.uri(),
        recursive: false,
        sandbox: None,
    }
}

/// Copies with everything below a directory.
pub(crate) fn copy_tree(
    source: &(impl Named + ?Sized),
    destination: &(impl Named + ?Sized),
) -> Copy {
    Copy {
        recursive: true,
        ..copy(source, destination)
    }
}

/// Renames without replacing anything.
pub(crate) fn rename(
    source: &(impl Named + ?Sized),
    destination: &(impl Named + ?Sized),
) -> Rename {
    Rename {
        source_path: source.uri(),
        destination_path: destination.uri(),
        overwrite: false,
        sandbox: None,
    }
}

pub(crate) fn open(path: &(impl Named + ?Sized), mode: OpenMode) -> Open {
    Open {
        path: path.uri(),
        mode,
        sandbox: None,
    }
}

/// Searches for plain text.
pub(crate) fn search(path: &(impl Named + ?Sized), pattern: &str) -> Search {
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

/// Searches for a regular expression.
pub(crate) fn search_regex(path: &(impl Named + ?Sized), pattern: &str) -> Search {
    Search {
        regex: true,
        ..search(path, pattern)
    }
}

/// Finds by a glob.
pub(crate) fn find(path: &(impl Named + ?Sized), glob: &str) -> Find {
    Find {
        path: path.uri(),
        glob: Some(glob.to_owned()),
        query: None,
        max_results: limits::DEFAULT_FIND_RESULTS,
        sandbox: None,
    }
}

/// Finds by letters.
pub(crate) fn find_query(path: &(impl Named + ?Sized), query: &str) -> Find {
    Find {
        glob: None,
        query: Some(query.to_owned()),
        ..find(path, "")
    }
}

pub(crate) fn watch(path: &(impl Named + ?Sized), depth: WatchDepth) -> WatchPath {
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

//! Operations on files under a policy, with everything else left at its default.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use exec_env::filesystem::{FileFuture, Open, OpenFile};
use exec_wire::{
    fs::{
        Canonicalize, Copy, CreateDirectory, DirectoryEntry, FileMetadata, Find, FoundPaths,
        GetMetadata, OpenMode, ReadDirectory, ReadFile, Remove, Rename, Search, SearchResult, Walk,
        WalkResult, WriteFile,
    },
    path_uri::PathUri,
};

use crate::{policy::Policy, request, subject::Subject};

/// The files of a subject under a policy.
#[derive(Debug)]
pub(crate) struct Under<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) policy: Policy,
}

impl Under<'_> {
    pub(crate) fn read(&self, path: &Path) -> FileFuture<Bytes> {
        self.subject.files.read_file(ReadFile {
            sandbox: self.policy.sandbox(),
            ..request::read(path)
        })
    }

    pub(crate) fn write(&self, path: &Path, data: impl Into<Bytes>) -> FileFuture<()> {
        let write = WriteFile {
            sandbox: self.policy.sandbox(),
            ..request::write(path)
        };
        self.subject.files.write_file(write, data.into())
    }

    pub(crate) fn create(&self, path: &Path) -> FileFuture<()> {
        self.subject.files.create_directory(CreateDirectory {
            sandbox: self.policy.sandbox(),
            ..request::create(path)
        })
    }

    pub(crate) fn metadata(&self, path: &Path) -> FileFuture<FileMetadata> {
        self.subject.files.metadata(GetMetadata {
            sandbox: self.policy.sandbox(),
            ..request::metadata(path)
        })
    }

    pub(crate) fn canonicalize(&self, path: &Path) -> FileFuture<PathUri> {
        self.subject.files.canonicalize(Canonicalize {
            sandbox: self.policy.sandbox(),
            ..request::canonicalize(path)
        })
    }

    pub(crate) fn list(&self, path: &Path) -> FileFuture<Vec<DirectoryEntry>> {
        self.subject.files.read_directory(ReadDirectory {
            sandbox: self.policy.sandbox(),
            ..request::list(path)
        })
    }

    pub(crate) fn walk(&self, path: &Path) -> FileFuture<WalkResult> {
        self.subject.files.walk(Walk {
            sandbox: self.policy.sandbox(),
            ..request::walk(path, request::FAR)
        })
    }

    pub(crate) fn remove(&self, path: &Path) -> FileFuture<()> {
        self.subject.files.remove(Remove {
            sandbox: self.policy.sandbox(),
            force: Some(false),
            ..request::remove(path)
        })
    }

    pub(crate) fn copy(&self, source: &Path, destination: &Path) -> FileFuture<()> {
        self.subject.files.copy(Copy {
            sandbox: self.policy.sandbox(),
            ..request::copy_tree(source, destination)
        })
    }

    pub(crate) fn rename(&self, source: &Path, destination: &Path) -> FileFuture<()> {
        self.subject.files.rename(Rename {
            sandbox: self.policy.sandbox(),
            ..request::rename(source, destination)
        })
    }

    pub(crate) fn search(&self, path: &Path, text: &str) -> FileFuture<SearchResult> {
        self.subject.files.search(Search {
            sandbox: self.policy.sandbox(),
            ..request::search(path, text)
        })
    }

    pub(crate) fn find(&self, path: &Path, glob: &str) -> FileFuture<FoundPaths> {
        self.subject.files.find(Find {
            sandbox: self.policy.sandbox(),
            ..request::find(path, glob)
        })
    }

    pub(crate) fn open(&self, path: &Path, mode: OpenMode) -> FileFuture<Arc<dyn OpenFile>> {
        self.subject.files.open(Open {
            sandbox: self.policy.sandbox(),
            ..request::open(path, mode)
        })
    }
}

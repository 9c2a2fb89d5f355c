//! Takes the same steps with and without an enclosure: they must say and leave behind the same.

use std::{ffi::CString, fs, io, os::unix::fs::MetadataExt, path::Path};

use super::enclosed::{enclosed, free};
use crate::raw;

/// What the steps said, one line each.
#[derive(Debug, Default)]
pub(super) struct Log(Vec<String>);

impl Log {
    /// Notes a result: that it worked, or its error number.
    pub(super) fn note<T>(&mut self, what: &str, result: io::Result<T>) -> Option<T> {
        let said = match &result {
            Ok(_) => "ok".to_owned(),
            Err(error) => format!("{error}"),
        };
        self.0.push(format!("{what}: {said}"));
        result.ok()
    }

    /// Notes a fact.
    pub(super) fn fact(&mut self, what: &str, fact: impl std::fmt::Debug) {
        self.0.push(format!("{what} = {fact:?}"));
    }
}

/// Takes the same steps twice, and compares what they said and left behind.
pub(super) fn compare(steps: impl Fn(&mut Log) + Sync) {
    let run = |directory: &Path| {
        let mut log = Log::default();
        std::env::set_current_dir(directory).unwrap();
        steps(&mut log);
        log.0
    };
    let (with, without) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(said) = enclosed(with.path(), &[".git"], || run(with.path())) else {
        return;
    };
    assert_eq!(said, free(|| run(without.path())));
    assert!(!said.is_empty());
    assert_eq!(tree(with.path()), tree(without.path()));
}

/// Every file below a directory: name, type and permissions, number of names, content.
fn tree(directory: &Path) -> Vec<(String, u32, u64, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let about = path.symlink_metadata().unwrap();
        let kind = about.file_type();
        let content = if kind.is_symlink() {
            fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes()
        } else if kind.is_file() {
            fs::read(&path).unwrap_or_default()
        } else {
            Vec::new()
        };
        // How a directory counts its names is its file system's.
        let names = if kind.is_dir() { 0 } else { about.nlink() };
        all.push((name.clone(), about.mode(), names, content));
        if kind.is_dir() {
            let below = tree(&path).into_iter();
            all.extend(below.map(|(path, a, b, c)| (format!("{name}/{path}"), a, b, c)));
        }
    }
    all.sort();
    all
}

/// A path as the kernel takes it.
pub(super) fn text(path: &str) -> CString {
    CString::new(path).unwrap()
}

/// A call that the C library has no use for any more.
pub(super) fn call(number: i64, args: [usize; 6]) -> io::Result<usize> {
    raw::numbers(number, args).map_err(io::Error::from_raw_os_error)
}

//! Facts, and what they rest on.

use std::{
    cell::RefCell,
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};

use super::stamp::{Device, Stamp, keeps_times};
use crate::facts::{Facts, Found, ListError, Listed};

/// Passes on facts, and notes what they rest on before it looks: what changes between the two is then
/// seen later as a change.
pub(super) struct Recorder<'a> {
    facts: &'a dyn Facts,
    now: Duration,
    noted: RefCell<Noted>,
}

#[derive(Default)]
struct Noted {
    directories: HashMap<PathBuf, Stamp>,
    contents: Vec<Content>,
    devices: Vec<Device>,
    /// All paths that were looked at.
    bytes: usize,
    /// Something does not last, or cannot be told.
    is_doubtful: bool,
}

/// What facts rest on.
#[derive(Debug)]
pub(super) struct Evidence {
    /// Those above first.
    directories: Vec<(PathBuf, Stamp)>,
    contents: Vec<Content>,
}

#[derive(Debug)]
struct Content {
    path: PathBuf,
    most: usize,
    content: Vec<u8>,
}

impl<'a> Recorder<'a> {
    /// Starts with nothing noted at a time that the kernel's coarse clock has told.
    pub(super) fn new(facts: &'a dyn Facts, now: Duration) -> Self {
        Self {
            facts,
            now,
            noted: RefCell::default(),
        }
    }

    /// Notes that it matters what is at a path.
    pub(super) fn rely_on(&self, path: &Path) {
        let mut noted = self.noted.borrow_mut();
        noted.bytes += path.as_os_str().len();
        noted.is_doubtful |= noted.bytes > MAX_BYTES;
        let Some(parent) = path.parent() else {
            return;
        };
        if noted.is_doubtful || noted.directories.contains_key(parent) {
            return;
        }
        // From the root on: each is stamped by a path that the stamps above it vouch for.
        let mut above: Vec<_> = parent.ancestors().collect();
        above.reverse();
        for directory in above {
            noted.stamp(directory, self.now);
        }
    }

    /// Returns what everything so far rests on. `None`: on something that may change unnoticed.
    pub(super) fn into_evidence(self) -> Option<Evidence> {
        let noted = self.noted.into_inner();
        if noted.is_doubtful {
            return None;
        }
        let mut directories: Vec<_> = noted.directories.into_iter().collect();
        directories.sort_by(|(one, _), (other, _)| one.cmp(other));
        Some(Evidence {
            directories,
            contents: noted.contents,
        })
    }

    fn doubt(&self) {
        self.noted.borrow_mut().is_doubtful = true;
    }
}

impl Noted {
    fn stamp(&mut self, directory: &Path, now: Duration) {
        if self.is_doubtful || self.directories.contains_key(directory) {
            return;
        }
        match Stamp::of(directory) {
            Some(stamp)
                if self.directories.len() < MAX_DIRECTORIES
                    && stamp.is_settled(now)
                    && self.keeps_times(directory, stamp.device()) =>
            {
                self.directories.insert(directory.to_owned(), stamp);
            }
            Some(_) | None => self.is_doubtful = true,
        }
    }

    fn keeps_times(&mut self, directory: &Path, device: Device) -> bool {
        let is_known = self.devices.contains(&device);
        if !is_known && keeps_times(directory) {
            self.devices.push(device);
            return true;
        }
        is_known
    }
}

impl Facts for Recorder<'_> {
    fn look(&self, path: &Path) -> Found {
        self.rely_on(path);
        let found = self.facts.look(path);
        if found == Found::Unknown {
            self.doubt();
        }
        found
    }

    fn read(&self, path: &Path, most: usize) -> Option<Vec<u8>> {
        self.rely_on(path);
        let content = self.facts.read(path, most);
        let mut noted = self.noted.borrow_mut();
        match &content {
            Some(content) if noted.contents.len() < MAX_CONTENTS => noted.contents.push(Content {
                path: path.to_owned(),
                most,
                content: content.clone(),
            }),
            Some(_) | None => noted.is_doubtful = true,
        }
        content
    }

    /// Nothing that was listed is remembered: whole trees would have to be stamped.
    fn list(&self, path: &Path, most: usize) -> Result<Vec<Listed>, ListError> {
        self.doubt();
        self.facts.list(path, most)
    }
}

impl Evidence {
    /// Tells whether all is as it was.
    pub(super) fn holds(&self, facts: &dyn Facts) -> bool {
        let is_same =
            |(path, stamp): &(PathBuf, Stamp)| Stamp::of(path).is_some_and(|now| now == *stamp);
        let reads_same = |read: &Content| {
            let now = facts.read(&read.path, read.most);
            now.is_some_and(|now| now == read.content)
        };
        self.directories.iter().all(is_same) && self.contents.iter().all(reads_same)
    }
}

/// More are not faster to look at than the policy is to resolve.
const MAX_DIRECTORIES: usize = 512;
/// Two for each directory of git's that a file points to.
const MAX_CONTENTS: usize = 16;
/// Of all paths in one plan.
const MAX_BYTES: usize = 256 << 10;

//! The open directories on the way down a tree.
//!
//! Few directories are open at once, however deep the tree is. A closed one is reopened as `..` of
//! its child, and accepted only if it is the same directory, so a tree that is moved meanwhile does
//! not redirect the operation.

use std::io;

use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{Mode, OFlags, Stat, fstat},
};

use crate::resolve;

/// The directories from the top of a tree down to the current one.
#[derive(Debug)]
pub(crate) struct DirectoryStack {
    current: OwnedFd,
    above: Vec<StackLevel>,
}

impl DirectoryStack {
    /// Starts at the top.
    pub(crate) fn new(top: OwnedFd) -> Self {
        Self {
            current: top,
            above: Vec::new(),
        }
    }

    /// Enters a subdirectory of the current directory.
    pub(crate) fn enter(&mut self, directory: OwnedFd) -> io::Result<()> {
        let above = std::mem::replace(&mut self.current, directory);
        self.above.push(StackLevel::Open(above));
        if let Some(far) = self.above.len().checked_sub(OPEN_LEVELS + 1) {
            self.above[far].close()?;
        }
        Ok(())
    }

    /// Returns to the parent directory. Does nothing at the top.
    pub(crate) fn leave(&mut self) -> io::Result<()> {
        self.current = match self.above.pop() {
            None => return Ok(()),
            Some(StackLevel::Open(directory)) => directory,
            Some(StackLevel::Closed(identity)) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                let directory = resolve::open_at(&self.current, "..", flags, Mode::empty())?;
                if InodeId::of(&directory)? != identity {
                    return Err(io::Error::other("directory was moved meanwhile"));
                }
                directory
            }
        };
        Ok(())
    }

    /// Returns the current directory.
    pub(crate) fn current(&self) -> BorrowedFd<'_> {
        self.current.as_fd()
    }
}

#[derive(Debug)]
enum StackLevel {
    Open(OwnedFd),
    Closed(InodeId),
}

impl StackLevel {
    fn close(&mut self) -> io::Result<()> {
        if let Self::Open(directory) = self {
            *self = Self::Closed(InodeId::of(directory)?);
        }
        Ok(())
    }
}

/// Most ancestors that stay open. Trees are seldom deeper, and the whole server shares its
/// descriptors.
const OPEN_LEVELS: usize = 16;

/// Identifies a file by device and inode number.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct InodeId {
    device: u64,
    inode: u64,
}

impl InodeId {
    /// Returns the identity of an open file.
    pub(crate) fn of(file: impl AsFd) -> rustix::io::Result<Self> {
        fstat(file).map(|stat| Self::from(&stat))
    }
}

impl From<&Stat> for InodeId {
    fn from(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::test_dir::{TestDir, open_directory};

    fn down(levels: &mut DirectoryStack, names: usize) {
        for _ in 0..names {
            let below = resolve::directory_at(levels.current(), "d").unwrap();
            levels.enter(below).unwrap();
        }
    }

    #[test]
    fn leaving_retraces_the_entered_directories_with_few_descriptors() {
        let scratch = TestDir::new();
        let top = scratch.deep("top", 100);
        let mut levels = DirectoryStack::new(open_directory(&top));
        let mut seen = vec![InodeId::of(levels.current())];
        for _ in 0..100 {
            down(&mut levels, 1);
            seen.push(InodeId::of(levels.current()));
            let open = |level: &&StackLevel| matches!(level, StackLevel::Open(_));
            assert!(levels.above.iter().filter(open).count() <= OPEN_LEVELS);
        }
        while let Some(identity) = seen.pop() {
            assert_eq!(InodeId::of(levels.current()), identity);
            levels.leave().unwrap();
        }
    }

    #[test]
    fn moved_tree_does_not_redirect() {
        let scratch = TestDir::new();
        let top = scratch.deep("top", 40);
        let elsewhere = scratch.directory("elsewhere");
        let mut levels = DirectoryStack::new(open_directory(&top));
        down(&mut levels, 40);
        fs::rename(top.join("d/d/d"), elsewhere.join("d")).unwrap();
        let left = std::iter::repeat_with(|| levels.leave()).take_while(Result::is_ok);
        assert_eq!(left.count(), 37);
    }
}

//! Which file it is, whatever its names are.

use rustix::{
    fd::AsFd,
    fs::{Stat, fstat},
    io,
};

/// Two descriptors or names with the same identity are the same file.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// Returns the identity of what is open.
    pub(crate) fn of(file: impl AsFd) -> io::Result<Self> {
        fstat(file).map(|stat| Self::from(&stat))
    }
}

impl From<&Stat> for Identity {
    fn from(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}

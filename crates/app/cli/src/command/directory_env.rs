//! Environment of a directory: the name in `.exec-server/env`, and the records of files that the
//! user has approved.
//!
//! Invariant: a file counts only if the user approved exactly this content at exactly this path. A
//! checkout or a sandboxed command can write the file, but cannot redirect commands with it.

#[cfg(test)]
mod tests;

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use exec_settings::settings_source::{VariableLookup, allowed_directories};
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use crate::command::failure::CommandFailure;

/// Subdirectory that holds the file.
const DIRECTORY: &str = ".exec-server";
/// Name of the file.
const FILE: &str = "env";
/// Maximum size: one name and a few comments.
const MAX_BYTES: u64 = 4096;
/// Maximum number of records. Records of deleted files are removed first.
const MAX_RECORDS: usize = 1024;

/// A file that names the environment of a directory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct DirectoryEnv {
    /// Path of the file; its directory has no symbolic links.
    pub(crate) path: PathBuf,
    /// The environment, as for `--env`; `None` if the content is not one name.
    pub(crate) name: Option<String>,
    /// Whether the user has approved it.
    pub(crate) approval: Approval,
    digest: String,
}

/// Whether the user has approved a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Approval {
    /// The user approved exactly this content at this path.
    Allowed,
    /// The user approved other content at this path.
    Changed,
    /// The user has approved nothing at this path.
    Unknown,
}

impl DirectoryEnv {
    /// Finds the file of a directory or of the nearest directory above it.
    pub(crate) fn find(directory: &Path, lookup: VariableLookup<'_>) -> io::Result<Option<Self>> {
        let directory = fs::canonicalize(directory)?;
        for ancestor in directory.ancestors() {
            let path = ancestor.join(DIRECTORY).join(FILE);
            match read(&path) {
                Ok(content) => return Ok(Some(Self::new(path, &content, lookup))),
                Err(error) if is_absent(&error) => {}
                Err(error) => {
                    let what = format!("cannot read `{}`: {error}", path.display());
                    return Err(io::Error::new(error.kind(), what));
                }
            }
        }
        Ok(None)
    }

    fn new(path: PathBuf, content: &[u8], lookup: VariableLookup<'_>) -> Self {
        let digest = digest(content);
        let approval = match ApprovalRecords::find(lookup) {
            Some(records) => records.approval(&path, &digest),
            None => Approval::Unknown,
        };
        Self {
            name: name(content),
            path,
            approval,
            digest,
        }
    }

    /// Writes the file of a directory and allows it.
    pub(crate) fn write(
        directory: &Path,
        name: &str,
        lookup: VariableLookup<'_>,
    ) -> Result<Self, CommandFailure> {
        if self::name(name.as_bytes()).as_deref() != Some(name) {
            let what = format!("`{name}` cannot be the name of an environment");
            return Err(CommandFailure::usage(what));
        }
        let content = format!("{name}\n");
        let path = create(directory, &content).map_err(|error| {
            let path = directory.join(DIRECTORY).join(FILE);
            let what = format!("cannot write `{}`: {error}", path.display());
            CommandFailure::failed(what)
        })?;
        let mut env = Self::new(path, content.as_bytes(), lookup);
        env.allow(lookup)?;
        Ok(env)
    }

    /// Allows the content that was read.
    pub(crate) fn allow(&mut self, lookup: VariableLookup<'_>) -> Result<(), CommandFailure> {
        let records = ApprovalRecords::find(lookup).ok_or_else(|| {
            CommandFailure::failed("cannot determine the settings directory")
                .next("set HOME, XDG_CONFIG_HOME or EXEC_SERVER_HOME")
        })?;
        records
            .add(&self.path, &self.digest)
            .map_err(|error| records.failed(&error))?;
        self.approval = Approval::Allowed;
        Ok(())
    }

    /// Withdraws the user's approval of this path.
    pub(crate) fn forget(&self, lookup: VariableLookup<'_>) -> Result<(), CommandFailure> {
        let Some(records) = ApprovalRecords::find(lookup) else {
            return Ok(());
        };
        records
            .remove(&self.path)
            .map_err(|error| records.failed(&error))
    }

    /// Removes the file, and its directory unless that has other files.
    pub(crate) fn remove(self, lookup: VariableLookup<'_>) -> Result<(), CommandFailure> {
        fs::remove_file(&self.path).map_err(|error| {
            let what = format!("cannot remove `{}`: {error}", self.path.display());
            CommandFailure::failed(what)
        })?;
        if let Some(directory) = self.path.parent() {
            // Fails if the directory has other files.
            let _kept = fs::remove_dir(directory);
        }
        self.forget(lookup)
    }

    /// Returns the directory that the file is for.
    pub(crate) fn directory(&self) -> &Path {
        let parent = self.path.parent().and_then(Path::parent);
        parent.unwrap_or(Path::new("/"))
    }

    /// Explains why the file is ignored; `None` if it counts.
    pub(crate) fn objection(&self) -> Option<String> {
        let path = self.path.display();
        let Some(name) = &self.name else {
            return Some(format!(
                "ignoring `{path}`: it does not have one line with the name of an environment"
            ));
        };
        let why = match self.approval {
            Approval::Allowed => return None,
            Approval::Changed => "it has changed since you allowed it",
            Approval::Unknown => "you have not allowed it",
        };
        Some(format!(
            "ignoring `{path}`, which names `{name}`: {why}; to allow it: exec-server use --allow"
        ))
    }
}

/// Returns the only name in a file. Blank lines and lines that start with `#` are ignored.
fn name(content: &[u8]) -> Option<String> {
    let text = str::from_utf8(content).ok()?;
    let lines = text.lines().map(str::trim);
    let mut names = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let name = names.next()?;
    let is_only = names.next().is_none() && !name.contains(char::is_control);
    is_only.then(|| name.to_owned())
}

pub(crate) fn digest(content: &[u8]) -> String {
    format!("{:x}", Sha256::digest(content))
}

/// Opens a regular file without blocking: others may have put a FIFO there.
pub(crate) fn open_regular(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = (flags | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a file")),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let file = open_regular(path, OFlags::empty())?;
    file.take(MAX_BYTES + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("it is larger than 4 KiB"));
    }
    Ok(content)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Writes the file of a directory atomically. Returns its path.
fn create(directory: &Path, content: &str) -> io::Result<PathBuf> {
    let below = fs::canonicalize(directory)?.join(DIRECTORY);
    match fs::symlink_metadata(&below) {
        Ok(found) if found.is_dir() => {}
        // A symbolic link would redirect the write.
        Ok(_) => return Err(io::Error::other("`.exec-server` is not a directory")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir(&below)?,
        Err(error) => return Err(error),
    }
    let path = below.join(FILE);
    replace(&path, content.as_bytes(), 0o644)?;
    Ok(path)
}

/// Replaces a file atomically.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let draft = path.with_extension(format!("{}.new", std::process::id()));
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(mode).open(&draft);
    let written = opened
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        // The first failure is the one to report.
        let _may_not_exist = fs::remove_file(&draft);
    }
    written
}

/// Directory with one record per allowed file. A record is named after the path and contains the
/// SHA-256 of the content.
#[derive(Debug)]
struct ApprovalRecords(PathBuf);

impl ApprovalRecords {
    /// Returns the directory, which may not exist yet.
    fn find(lookup: VariableLookup<'_>) -> Option<Self> {
        allowed_directories(lookup).map(Self)
    }

    fn record(&self, path: &Path) -> PathBuf {
        self.0.join(digest(path.as_os_str().as_bytes()))
    }

    fn approval(&self, path: &Path, digest: &str) -> Approval {
        match read_private(&self.record(path)) {
            Ok(text) if text.split_whitespace().next() == Some(digest) => Approval::Allowed,
            Ok(_) => Approval::Changed,
            Err(_) => Approval::Unknown,
        }
    }

    /// Adds or replaces a record.
    fn add(&self, path: &Path, digest: &str) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)?;
        let record = self.record(path);
        if !record.exists() {
            self.make_space(MAX_RECORDS)?;
        }
        // The path is for people, and for `make_space`, which removes records of deleted files.
        let mut line = format!("{digest} ").into_bytes();
        line.extend_from_slice(path.as_os_str().as_bytes());
        line.push(b'\n');
        replace(&record, &line, 0o600)
    }

    /// Removes records of deleted files if the maximum of records is reached.
    fn make_space(&self, max: usize) -> io::Result<()> {
        let records: Vec<_> = fs::read_dir(&self.0)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        if records.len() < max {
            return Ok(());
        }
        let mut removed = 0;
        for record in &records {
            let line = fs::read(record)?;
            let path = line.splitn(2, |byte| *byte == b' ').nth(1);
            let path = path.map(|path| path.trim_ascii_end());
            let path = path.map(|path| Path::new(std::ffi::OsStr::from_bytes(path)));
            if !path.is_some_and(Path::exists) {
                fs::remove_file(record)?;
                removed += 1;
            }
        }
        match removed {
            0 => Err(io::Error::other(format!(
                "{max} directories are already allowed: forget one with `use --forget`"
            ))),
            _ => Ok(()),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(self.record(path)) {
            Err(error) if is_absent(&error) => Ok(()),
            removed => removed,
        }
    }

    fn failed(&self, error: &io::Error) -> CommandFailure {
        let what = format!("cannot change `{}`: {error}", self.0.display());
        CommandFailure::failed(what)
    }
}

/// Reads a record that only this account can have written.
fn read_private(path: &Path) -> io::Result<String> {
    let file = open_regular(path, OFlags::NOFOLLOW)?;
    let found = file.metadata()?;
    let is_ours = found.uid() == rustix::process::geteuid().as_raw();
    if !is_ours || found.mode() & 0o077 != 0 {
        return Err(io::Error::other("other accounts can change it"));
    }
    let mut bytes = Vec::new();
    // A digest and a path of at most 4 KiB.
    file.take(MAX_BYTES * 2).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

//! What a directory of this machine holds, of any size.
//! Not here: directories elsewhere, which a server lists.

use std::{
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use exec_env::filesystem::FileError;
use exec_wire::path_uri::PathUri;

use super::entries::{Entries, Entry, EntryKind};

/// Most entries of one directory: all of their names are held at once.
const MAX_ENTRIES: usize = 4_000_000;

/// Lists a directory of this machine.
pub(crate) async fn native_entries(directory: PathBuf) -> Result<Entries, FileError> {
    let listed = tokio::task::spawn_blocking(move || list(&directory)).await;
    listed.map_err(|error| FileError::Host(error.to_string()))?
}

fn list(directory: &Path) -> Result<Entries, FileError> {
    let failed = |error: io::Error| {
        let text = format!("cannot list `{}`: {error}", directory.display());
        match error.kind() == io::ErrorKind::NotFound {
            true => FileError::NotFound(text),
            false => FileError::Host(text),
        }
    };
    let mut found = Entries::default();
    for entry in fs::read_dir(directory).map_err(failed)? {
        if found.entries.len() == MAX_ENTRIES {
            found.truncated = true;
            break;
        }
        let entry = entry.map_err(failed)?;
        let kind = kind(&entry).map_err(failed)?;
        let Ok(path) = PathUri::from_native(&entry.path()) else {
            continue;
        };
        let name = entry.file_name().into_vec();
        found.entries.push(Entry { name, path, kind });
    }
    found
        .entries
        .sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// Returns what an entry is, perhaps behind a link.
fn kind(entry: &fs::DirEntry) -> io::Result<EntryKind> {
    let of = |kind: fs::FileType| match (kind.is_file(), kind.is_dir()) {
        (true, _) => EntryKind::File,
        (_, true) => EntryKind::Directory,
        (false, false) => EntryKind::Other,
    };
    let kind = entry.file_type()?;
    if !kind.is_symlink() {
        return Ok(of(kind));
    }
    Ok(match fs::metadata(entry.path()) {
        Ok(found) => of(found.file_type()),
        Err(_) => EntryKind::Nowhere,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_directory_with_more_than_a_server_lists_is_listed_whole() {
        let directory = tempfile::tempdir().unwrap();
        let count = exec_wire::limits::MAX_DIRECTORY_ENTRIES + 1;
        for number in 0..count {
            fs::write(directory.path().join(number.to_string()), "").unwrap();
        }
        let found = native_entries(directory.path().to_owned()).await.unwrap();
        assert_eq!((found.entries.len(), found.truncated), (count, false));
    }

    #[tokio::test]
    async fn links_are_what_is_behind_them_or_nowhere() {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), "").unwrap();
        for (link, to) in [("a", "file"), ("b", "."), ("c", "none"), ("d", "d")] {
            symlink(to, at(link)).unwrap();
        }
        let found = native_entries(directory.path().to_owned()).await.unwrap();
        let kinds: Vec<_> = found.entries.iter().map(|entry| entry.kind).collect();
        let expected = [
            EntryKind::File,
            EntryKind::Directory,
            EntryKind::Nowhere,
            EntryKind::Nowhere,
            EntryKind::File,
        ];
        assert_eq!(kinds, expected);
    }
}

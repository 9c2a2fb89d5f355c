//! The programs that can be pushed to a target, one for each architecture.
//!
//! Search order: the directory that `EXEC_SERVER_DIST` names, the directory of the running program,
//! `../lib/exec-server` from there, where packages put them, and for its own architecture the
//! running program itself.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

/// Largest program that is pushed.
const MAX_PROGRAM_BYTES: u64 = 512 << 20;

/// Linkers put the headers and the name of the loader at the start.
const HEADER_BYTES: u64 = 64 << 10;

/// Processor architecture, as `uname -m` names it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Architecture {
    /// `x86_64`.
    X86_64,
    /// `aarch64`.
    Aarch64,
}

impl Architecture {
    /// All supported architectures.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }
}

/// Locations to search for programs. Clones share the results.
#[derive(Clone, Debug, Default)]
pub struct DistSources {
    directory: Option<PathBuf>,
    found: Arc<OnceLock<Vec<DistProgram>>>,
}

impl DistSources {
    /// Searches this directory first.
    pub fn new(directory: Option<PathBuf>) -> Self {
        let found = Arc::default();
        Self { directory, found }
    }

    /// Returns the directory that is searched first.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Returns the directories that are searched, in order.
    pub fn directories(&self) -> Vec<PathBuf> {
        let own = std::env::current_exe().ok();
        let installed = own.iter().flat_map(|own| installed_directories(own));
        self.directory.iter().cloned().chain(installed).collect()
    }

    /// Finds the program for each architecture, once. Reads and digests them, so it blocks.
    pub fn find(&self) -> &[DistProgram] {
        let find = |architecture| self.find_for(architecture);
        let find = || Architecture::ALL.into_iter().filter_map(find).collect();
        self.found.get_or_init(find)
    }

    fn find_for(&self, architecture: Architecture) -> Option<DistProgram> {
        let name = architecture.name();
        let version = env!("CARGO_PKG_VERSION");
        let names = [
            format!("exec-server-{version}-{name}"),
            format!("exec-server-{name}"),
        ];
        let directories = self.directories();
        let named = directories
            .iter()
            .flat_map(|directory| names.iter().map(|name| directory.join(name)));
        // The executable of this process, even after its file was replaced.
        let own = PathBuf::from("/proc/self/exe");
        named.chain([own]).find_map(|path| {
            let found = DistProgram::open(&path, architecture);
            let found = found.inspect_err(|error| {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), %error, "ignoring a program");
                }
            });
            found.ok().flatten()
        })
    }
}

/// Returns where programs for other machines lie that were installed together with this program.
fn installed_directories(program: &Path) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    if let Some(beside) = program.parent() {
        directories.push(beside.to_owned());
        let prefix = beside.parent();
        directories.extend(prefix.map(|prefix| prefix.join("lib/exec-server")));
    }
    directories
}

/// A program for one architecture.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DistProgram {
    /// Its architecture.
    pub architecture: Architecture,
    /// Its file.
    pub path: PathBuf,
    /// SHA-256 digest in hexadecimal digits.
    pub digest: String,
    /// Its length.
    pub bytes: u64,
    /// The loader of its shared libraries. Absent: it is static and runs on any Linux.
    pub loader: Option<String>,
}

impl DistProgram {
    /// Opens a program. Returns `None` if it is for another architecture.
    fn open(path: &Path, architecture: Architecture) -> io::Result<Option<Self>> {
        let mut file = File::open(path)?;
        let bytes = file.metadata()?.len();
        if bytes > MAX_PROGRAM_BYTES {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        let mut content = Vec::new();
        file.by_ref().take(HEADER_BYTES).read_to_end(&mut content)?;
        let elf = ElfFacts::parse(&content)
            .ok_or_else(|| io::Error::other("not a Linux program for a known architecture"))?;
        if elf.architecture != architecture {
            return Ok(None);
        }
        file.read_to_end(&mut content)?;
        let shown = match path.starts_with("/proc") {
            true => std::env::current_exe()?,
            false => path.to_owned(),
        };
        Ok(Some(Self {
            architecture,
            path: shown,
            digest: digest(&content),
            bytes: content.len() as u64,
            loader: elf.loader,
        }))
    }

    /// Reads the program.
    ///
    /// # Errors
    /// Fails if the file is gone or has changed since it was found.
    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        for path in [self.path.as_path(), Path::new("/proc/self/exe")] {
            match std::fs::read(path) {
                Ok(content) if digest(&content) == self.digest => return Ok(content),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let text = format!("`{}` has just been replaced", self.path.display());
        Err(io::Error::other(text))
    }
}

/// Returns the SHA-256 digest in hexadecimal digits.
pub(crate) fn digest(content: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(content))
}

/// Facts from the header of a program.
#[derive(Clone, Debug, Eq, PartialEq)]
struct ElfFacts {
    architecture: Architecture,
    loader: Option<String>,
}

impl ElfFacts {
    /// Parses the header of a 64-bit little-endian ELF program.
    fn parse(content: &[u8]) -> Option<Self> {
        const PT_INTERP: u64 = 3;
        let number = |at: usize, bytes: usize| -> Option<u64> {
            let text = content.get(at..at.checked_add(bytes)?)?;
            let digits = text.iter().rev();
            Some(digits.fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
        };
        let size = |at: usize, bytes: usize| usize::try_from(number(at, bytes)?).ok();
        if !content.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let architecture = match number(18, 2)? {
            62 => Architecture::X86_64,
            183 => Architecture::Aarch64,
            _ => return None,
        };
        let (first, length, count) = (size(32, 8)?, size(54, 2)?, size(56, 2)?);
        let headers = (0..count).map_while(|index| first.checked_add(index * length));
        let interpreter = headers
            .into_iter()
            .find(|at| number(*at, 4) == Some(PT_INTERP));
        let loader = match interpreter {
            None => None,
            Some(header) => {
                let (begin, length) = (size(header + 8, 8)?, size(header + 32, 8)?);
                let name = content.get(begin..begin.checked_add(length)?)?;
                let name = String::from_utf8_lossy(name);
                Some(name.trim_end_matches('\0').to_owned())
            }
        };
        Some(Self {
            architecture,
            loader,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_program_serves_its_own_architecture() {
        let sources = DistSources::default();
        let own = &sources.find()[0];
        assert_eq!(own.architecture.name(), std::env::consts::ARCH);
        assert_eq!(own.read().unwrap().len() as u64, own.bytes);
    }

    #[test]
    fn named_directory_comes_first() {
        let directory = tempfile::tempdir().unwrap();
        let name = format!("exec-server-{}", std::env::consts::ARCH);
        let path = directory.path().join(name);
        let sources = || DistSources::new(Some(directory.path().to_owned()));
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        assert_ne!(sources().find()[0].path, path, "a script is not a program");
        std::fs::copy("/proc/self/exe", &path).unwrap();
        let found = sources().find()[0].clone();
        assert_eq!(found.path, path);
        std::fs::write(&path, "changed").unwrap();
        std::fs::remove_file(&path).unwrap();
        // The own executable has the same digest here.
        assert!(found.read().is_ok());
        let changed = DistProgram {
            digest: digest(b"other"),
            ..found
        };
        assert!(changed.read().is_err());
    }

    #[test]
    fn packages_install_programs_beside_theirs_or_in_their_library_directory() {
        let directories = installed_directories(Path::new("/usr/bin/exec-server"));
        assert_eq!(
            directories,
            ["/usr/bin", "/usr/lib/exec-server"].map(PathBuf::from)
        );
        let directories = installed_directories(Path::new("/exec-server"));
        assert_eq!(directories, [PathBuf::from("/")]);
    }

    #[test]
    fn truncated_headers_are_not_programs() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        for length in [0, 4, 20, 40, 60, 64] {
            let facts = ElfFacts::parse(&own[..length]);
            assert!(facts.is_none_or(|facts| facts.loader.is_none()), "{length}");
        }
        assert!(ElfFacts::parse(&own).is_some());
    }
}

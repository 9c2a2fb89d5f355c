//! Description of the host: login shell, home and temporary directories.
//!
//! Pure: the caller reads the environment and `/etc/passwd` and checks for files. Elsewhere:
//! versions and capabilities, which belong to the server.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    env::consts,
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
};

use exec_wire::{
    environment::{EnvironmentInfo, ServerCapabilities, ShellProgram},
    path_uri::PathUri,
};

/// Description of the host that commands run on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostDescription {
    /// Login shell of the account, or the best installed shell.
    pub shell: ShellProgram,
    /// The server's working directory.
    pub cwd: PathBuf,
    /// Home directory of the account.
    pub home: Option<PathBuf>,
    /// Absolute path of `TMPDIR`, if it is set.
    pub tmpdir: Option<PathBuf>,
}

impl HostDescription {
    /// Derives the description from facts about the host.
    pub fn new(facts: &HostFacts<'_>) -> Self {
        let account = PasswdEntry::find(facts.passwd, facts.uid);
        let home = facts
            .variable("HOME")
            .or(account.as_ref().map(|account| OsStr::new(account.home)))
            .map(PathBuf::from);
        let tmpdir = facts
            .env
            .get(OsStr::new("TMPDIR"))
            .filter(|value| !value.is_empty());
        Self {
            shell: login_shell(facts, account.as_ref()),
            cwd: facts.cwd.to_owned(),
            home: home.filter(|home| home.is_absolute()),
            tmpdir: tmpdir.map(|tmpdir| facts.cwd.join(tmpdir)),
        }
    }

    /// Describes the host to a client. Omits paths without a URI form.
    pub fn environment_info(
        &self,
        version: &str,
        capabilities: ServerCapabilities,
    ) -> EnvironmentInfo {
        let tmpdir = self.tmpdir.as_deref().and_then(uri);
        EnvironmentInfo {
            shell: self.shell.clone(),
            cwd: uri(&self.cwd),
            executor_version: version.to_owned(),
            provider_id: None,
            user_home_dir: self.home.as_deref().and_then(uri),
            platform_os: Some(consts::OS.to_owned()),
            prepend_path_dirs: Vec::new(),
            temporary_directories: Some(tmpdir.into_iter().collect()),
            temp_dir: uri(self.temp_dir()),
            capabilities,
        }
    }

    /// Returns the directory for temporary files.
    pub fn temp_dir(&self) -> &Path {
        self.tmpdir
            .as_deref()
            .unwrap_or(Path::new(DEFAULT_TEMP_DIR))
    }
}

/// Facts about the host, read by the caller.
pub struct HostFacts<'a> {
    /// The server's environment.
    pub env: &'a BTreeMap<OsString, OsString>,
    /// Content of `/etc/passwd`, or empty.
    pub passwd: &'a str,
    /// The account that the server runs as.
    pub uid: u32,
    /// The server's working directory, absolute.
    pub cwd: &'a Path,
    /// Returns whether a program exists.
    pub exists: &'a dyn Fn(&Path) -> bool,
}

impl fmt::Debug for HostFacts<'_> {
    /// Omits the environment, which holds secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFacts")
            .field("uid", &self.uid)
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}

impl HostFacts<'_> {
    /// Returns a variable if its value is an absolute path.
    fn variable(&self, name: &str) -> Option<&OsStr> {
        let value = self.env.get(OsStr::new(name))?;
        Path::new(value).is_absolute().then_some(value)
    }

    fn find_program(&self, name: &str) -> Option<PathBuf> {
        let path = self
            .env
            .get(OsStr::new("PATH"))
            .map(OsString::as_os_str)
            .unwrap_or_default();
        std::env::split_paths(path)
            .filter(|folder| folder.is_absolute())
            .chain(STANDARD_BIN_DIRS.map(PathBuf::from))
            .map(|folder| folder.join(name))
            .find(|program| (self.exists)(program))
    }
}

/// A line of `/etc/passwd`.
struct PasswdEntry<'a> {
    home: &'a str,
    shell: &'a str,
}

impl<'a> PasswdEntry<'a> {
    fn find(passwd: &'a str, uid: u32) -> Option<Self> {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let entry_uid: u32 = fields.nth(2)?.parse().ok()?;
            let home = fields.nth(2)?;
            let shell = fields.next()?.trim_end();
            (entry_uid == uid).then_some(Self { home, shell })
        })
    }
}

fn login_shell(facts: &HostFacts<'_>, account: Option<&PasswdEntry<'_>>) -> ShellProgram {
    if let Some(account) = account
        && let Some(name) = known_shell_name(account.shell)
        && (facts.exists)(Path::new(account.shell))
    {
        return ShellProgram {
            name: name.to_owned(),
            path: account.shell.to_owned(),
        };
    }
    let preferred = if consts::OS == "macos" {
        ["zsh", "bash"]
    } else {
        ["bash", "zsh"]
    };
    preferred
        .into_iter()
        .find_map(|name| {
            let path = facts
                .find_program(name)?
                .into_os_string()
                .into_string()
                .ok()?;
            Some(ShellProgram {
                name: name.to_owned(),
                path,
            })
        })
        .unwrap_or_else(|| ShellProgram {
            name: "sh".to_owned(),
            path: "/bin/sh".to_owned(),
        })
}

/// Returns the name of the shell at an absolute path, if clients support it.
fn known_shell_name(path: &str) -> Option<&str> {
    let path = Path::new(path);
    let name = path.file_name()?.to_str()?;
    (path.is_absolute() && KNOWN_SHELLS.contains(&name)).then_some(name)
}

fn uri(path: &Path) -> Option<PathUri> {
    PathUri::from_native(path).ok()
}

const KNOWN_SHELLS: [&str; 3] = ["zsh", "bash", "sh"];
const STANDARD_BIN_DIRS: [&str; 3] = ["/bin", "/usr/bin", "/usr/local/bin"];
const DEFAULT_TEMP_DIR: &str = "/tmp";

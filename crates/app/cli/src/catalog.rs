//! Where this machine's configuration, plugins and skills lie.

use std::{
    ffi::OsStr,
    path::{self, Path, PathBuf},
    sync::Arc,
};

use exec_env::filesystem::ExecutorFileSystem;
use exec_local::{
    backend::LocalConfig,
    catalog::{CatalogConfig, LocalCatalog},
};

use crate::environments::CodexHome;

/// Where the machine's own configuration lies, for all accounts.
const SYSTEM: &str = "/etc/codex";

/// The places that were found.
#[derive(Debug)]
pub(crate) struct Places {
    codex_home: PathBuf,
    user_home: Option<PathBuf>,
    hostname: Option<String>,
}

impl Places {
    /// Finds them. Without a home, the root directory stands for it.
    pub(crate) fn find(config: &LocalConfig) -> Self {
        let user_home = config.host.home.clone();
        // Only what is said by the variable: the account's home may be known without `HOME`.
        let said = CodexHome::find(&|name| match name {
            "CODEX_HOME" => config.env.get(OsStr::new(name)).cloned(),
            _ => None,
        });
        let codex_home = match said {
            Some(said) => without_links(said.path()),
            None => user_home
                .as_deref()
                .unwrap_or(Path::new("/"))
                .join(".codex"),
        };
        let system = rustix::system::uname();
        let hostname = system.nodename().to_str().ok();
        Self {
            codex_home,
            user_home,
            hostname: hostname.map(str::to_owned),
        }
    }

    /// Makes a catalog that reads through `files`.
    pub(crate) fn catalog(self, files: Arc<dyn ExecutorFileSystem>) -> LocalCatalog {
        LocalCatalog::new(CatalogConfig {
            files,
            codex_home: self.codex_home,
            user_home: self.user_home,
            system: PathBuf::from(SYSTEM),
            hostname: self.hostname,
        })
    }
}

fn without_links(path: &Path) -> PathBuf {
    let absolute = || path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.canonicalize().unwrap_or_else(|_| absolute())
}

//! Where the tools work.

use std::path::{self, PathBuf};

use exec_env::environment::Environment;
use exec_tools::mcp::{Enclosure, Network, Workspace};
use exec_wire::{environment::EnvironmentInfo, path_uri::PathUri};

use crate::{
    command::{
        failure::{Failure, FailureKind},
        place::{Place, Where},
    },
    local::local_environment,
    paths::ExecServerRuntimePaths,
};

/// An environment, and the way its paths are typed.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) environment: Environment,
    info: EnvironmentInfo,
    /// Absent: this machine, in this process.
    place: Option<Place>,
}

impl Scene {
    /// Finds the environment. This machine needs no server: its commands end with us.
    pub(super) async fn open(wanted: &Where) -> Result<Self, Failure> {
        if wanted.env.as_deref().is_none_or(|name| name == "local") {
            let environment = local_environment(&ExecServerRuntimePaths::default())
                .map_err(|error| Failure::new(FailureKind::Failed, format!("{error:#}")))?;
            let info = environment.backend.info().await;
            let info = info.map_err(|error| Failure::new(FailureKind::Failed, error.message))?;
            return Ok(Self {
                environment,
                info,
                place: None,
            });
        }
        let place = Place::open(wanted).await?;
        Ok(Self {
            environment: place.environment(),
            info: place.info.clone(),
            place: Some(place),
        })
    }

    /// Makes the workspace of some directories.
    pub(super) async fn workspace(
        &self,
        directories: &[PathBuf],
        enclosure: Enclosure,
        network: Network,
    ) -> Result<Workspace, Failure> {
        let mut roots = self.paths(directories).await?;
        if roots.is_empty() {
            roots.push(self.here().await?);
        }
        let root = roots.remove(0);
        let workspace = Workspace::new(root, enclosure, network);
        Ok(workspace.with_more(roots).on(&self.info))
    }

    /// Reads directories as they were typed.
    pub(super) async fn paths(&self, typed: &[PathBuf]) -> Result<Vec<PathUri>, Failure> {
        let mut paths = Vec::new();
        for typed in typed {
            paths.push(self.path(typed).await?);
        }
        Ok(paths)
    }

    async fn path(&self, typed: &PathBuf) -> Result<PathUri, Failure> {
        match &self.place {
            Some(place) => place.path(typed).await,
            None => {
                let wrong = |error: &dyn std::fmt::Display| {
                    let what = format!("directory `{}`: {error}", typed.display());
                    Failure::new(FailureKind::Usage, what)
                };
                let absolute = path::absolute(typed).map_err(|error| wrong(&error))?;
                if !absolute.is_dir() {
                    let what = format!("`{}` is not a directory", typed.display());
                    return Err(Failure::new(FailureKind::NotFound, what)
                        .next("--workspace and --writable name directories that exist"));
                }
                PathUri::from_native(&absolute).map_err(|error| wrong(&error))
            }
        }
    }

    async fn here(&self) -> Result<PathUri, Failure> {
        if self.place.as_ref().is_none_or(|place| place.here) {
            return self.path(&PathBuf::from(".")).await;
        }
        let info = &self.info;
        let theirs = info.cwd.clone().or_else(|| info.user_home_dir.clone());
        theirs.ok_or_else(|| {
            Failure::new(
                FailureKind::Failed,
                "the server does not tell its directory",
            )
            .next("--workspace names one")
        })
    }
}

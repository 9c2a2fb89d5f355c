//! The servers under measurement: those we start ourselves, and those that run already.
//! Invariant: what was started here is ended here, by its pid, also when a measure fails.

mod instance;
mod launch;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

pub(crate) use instance::Instance;
pub(crate) use launch::Launch;

/// The name of the column that reaches are judged by.
pub(crate) const OURS: &str = "ours";

/// The name of the column that ratios are taken to where there is no floor.
pub(crate) const STOCK: &str = "stock";

/// A server under measurement.
#[derive(Debug)]
pub(crate) struct Target {
    name: String,
    source: Source,
    /// The instance that the speed measures share.
    shared: Instance,
}

impl Target {
    /// Starts a server and keeps the recipe, to start fresh ones later.
    ///
    /// If `launch` is a mere launcher, later instances are started from the binary behind it.
    pub(crate) fn launched(name: &str, mut launch: Launch) -> Result<Self> {
        let shared = Instance::launch(&launch).with_context(|| format!("cannot start {name}"))?;
        if shared.is_behind_launcher()
            && let Some(binary) = shared.binary()
        {
            eprintln!("exec-bench: {name} is started as {}", binary.display());
            launch.program = binary;
        }
        Ok(Self {
            name: name.to_owned(),
            source: Source::Launch(launch),
            shared,
        })
    }

    /// Joins a server that runs already.
    pub(crate) fn running(name: &str, url: &str) -> Self {
        let shared = Instance::join(url);
        Self {
            name: name.to_owned(),
            source: Source::Url(url.to_owned()),
            shared,
        }
    }

    /// Returns a fresh instance if this server can be started here, else the running one.
    pub(crate) fn fresh(&self) -> Result<Instance> {
        match &self.source {
            Source::Launch(launch) => Instance::launch(launch),
            Source::Url(url) => Ok(Instance::join(url)),
        }
    }

    /// Returns the launch recipe, unless the server was already running.
    pub(crate) const fn recipe(&self) -> Option<&Launch> {
        match &self.source {
            Source::Launch(launch) => Some(launch),
            Source::Url(_) => None,
        }
    }

    /// Returns the file that the server runs from.
    pub(crate) fn binary(&self) -> Option<PathBuf> {
        self.shared.binary()
    }

    /// Returns the title of its column.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the instance that the speed measures share.
    pub(crate) const fn shared(&self) -> &Instance {
        &self.shared
    }
}

#[derive(Debug)]
enum Source {
    Launch(Launch),
    Url(String),
}

/// Makes a path absolute; it must exist.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("cannot find {}", path.display()))
}

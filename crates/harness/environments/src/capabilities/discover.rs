//! One discovery: several roots of one environment, asked for together.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use exec_wire::discovery::{DiscoverRoots, DiscoveredRoot, DiscoveredRoots, DiscoveryRoot};
use tokio::time::timeout;

use super::{metadata::RootCapabilities, store::RootKey};
use exec_env::{environment::Environment, filesystem::FileError};

/// How long one discovery may take: a model step waits for it.
pub const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// What a discovery comes to, for each of its roots.
pub(super) type Discovered = BTreeMap<RootKey, Result<Arc<RootCapabilities>, DiscoverError>>;

/// Reads what lies below each root, through one handle.
pub(super) async fn discover(environment: Arc<Environment>, keys: Vec<RootKey>) -> Discovered {
    let root = |key: &RootKey| DiscoveryRoot {
        id: key.root.as_str().to_owned(),
        path: key.path.clone(),
        sandbox: None,
    };
    let roots = keys.iter().map(root).collect();
    let asked = environment.catalog.discover_roots(DiscoverRoots { roots });
    let answer = match timeout(DISCOVERY_TIMEOUT, asked).await {
        Ok(Ok(answer)) => checked(answer, keys.len()),
        Ok(Err(error)) => Err(DiscoverError::Catalog(error)),
        Err(_elapsed) => Err(DiscoverError::TimedOut),
    };
    match answer {
        Ok(roots) => keys
            .into_iter()
            .zip(roots)
            .map(|(key, root)| {
                let found = capabilities(&key, root);
                (key, found)
            })
            .collect(),
        Err(error) => keys
            .into_iter()
            .map(|key| (key, Err(error.clone())))
            .collect(),
    }
}

/// Checks that each root has its answer.
fn checked(answer: DiscoveredRoots, asked: usize) -> Result<Vec<DiscoveredRoot>, DiscoverError> {
    if answer.roots.len() == asked {
        Ok(answer.roots)
    } else {
        Err(DiscoverError::Answer("not one answer for each root"))
    }
}

fn capabilities(
    key: &RootKey,
    root: DiscoveredRoot,
) -> Result<Arc<RootCapabilities>, DiscoverError> {
    if root.id != key.root.as_str() {
        return Err(DiscoverError::Answer("answers in another order"));
    }
    match root.error {
        Some(text) => Err(DiscoverError::Root(text)),
        None => Ok(Arc::new(RootCapabilities::from_discovered(root))),
    }
}

/// Why a root could not be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoverError {
    /// Host: the root itself could not be read.
    #[error("{0}")]
    Root(String),
    /// Whoever the catalog blames: nothing could be discovered.
    #[error(transparent)]
    Catalog(FileError),
    /// Peer: the answer does not fit the question.
    #[error("the environment's answer does not fit: {0}")]
    Answer(&'static str),
    /// Peer: there was no answer in time.
    #[error("no answer within {} seconds", DISCOVERY_TIMEOUT.as_secs())]
    TimedOut,
}

//! Eviction from the cache, and invalid discovery responses.

use std::sync::Arc;

use exec_wire::{
    discovery::{
        CapabilityFile, DiscoverCapabilities, DiscoverRoots, DiscoveredCapabilities,
        DiscoveredRoot, DiscoveredRoots, PluginFiles,
    },
    environment::{EnvironmentConfig, ReadEnvironmentConfig},
};
use futures_util::future::{FutureExt, ready};

use super::{empty, fill, handle, skills, step, uri};
use crate::{
    capabilities::{CapabilityCache, DiscoverError, MAX_CACHED_BYTES, MAX_CACHED_ROOTS},
    fakes::{FakeCatalog, environment_with, within},
};
use exec_env::{
    environment::{ExecutorCatalog, NoCatalog},
    filesystem::FileFuture,
};

#[tokio::test]
async fn least_recently_used_root_is_evicted_first() {
    let catalog = FakeCatalog::open();
    let worker = handle("A", &catalog);
    let names: Vec<String> = (0..=MAX_CACHED_ROOTS)
        .map(|number| format!("r{number}"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    fill(&catalog, &names);
    let cache = CapabilityCache::default();
    let project = async |names: &[&str]| {
        let available = within(cache.project(&step(names, "worker", &worker))).await;
        assert_eq!(skills(&available), names);
        catalog.requested_roots()
    };
    for batch in names[..MAX_CACHED_ROOTS].chunks(100) {
        project(batch).await;
    }
    assert_eq!(
        project(&names[..1]).await,
        MAX_CACHED_ROOTS,
        "all are known"
    );
    let requested = project(&names[MAX_CACHED_ROOTS..]).await;
    assert_eq!(cache.size().0, MAX_CACHED_ROOTS);
    assert_eq!(
        project(&names[..1]).await,
        requested,
        "used a moment ago, so it is kept"
    );
    assert_eq!(project(&names[2..3]).await, requested);
    assert_eq!(
        project(&names[1..2]).await,
        requested + 1,
        "the oldest is gone"
    );
}

#[tokio::test]
async fn discovery_is_split_at_the_request_limit() {
    let catalog = FakeCatalog::open();
    let names: Vec<String> = (0..300).map(|number| format!("r{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    fill(&catalog, &names);
    let cache = CapabilityCache::default();
    let available = within(cache.project(&step(&names, "worker", &handle("A", &catalog)))).await;
    assert_eq!(skills(&available), names);
    assert_eq!((catalog.calls(), catalog.requested_roots()), (3, 300));
}

#[tokio::test]
async fn cache_size_in_bytes_is_limited() {
    let catalog = FakeCatalog::open();
    let worker = handle("A", &catalog);
    let root_of_size = |name: &str, bytes: usize| DiscoveredRoot {
        plugin: Some(PluginFiles {
            manifest: CapabilityFile {
                path: uri(&format!("/roots/{name}/.codex-plugin/plugin.json")),
                contents: "x".repeat(bytes),
            },
            mcp_config: None,
            apps_config: None,
        }),
        ..empty(name)
    };
    for name in ["a", "b", "c"] {
        catalog.put(
            uri(&format!("/roots/{name}")),
            Ok(root_of_size(name, MAX_CACHED_BYTES / 5 * 2)),
        );
    }
    catalog.put(
        uri("/roots/huge"),
        Ok(root_of_size("huge", MAX_CACHED_BYTES)),
    );
    let cache = CapabilityCache::default();
    for (name, cached) in [("a", 1), ("b", 2), ("c", 2), ("huge", 2)] {
        let available = within(cache.project(&step(&[name], "worker", &worker))).await;
        assert_eq!(available.plugins[0].plugin.name, name);
        let (roots, bytes) = cache.size();
        assert_eq!(roots, cached, "{name}");
        assert!(bytes <= MAX_CACHED_BYTES);
    }
    within(cache.project(&step(&["b", "c"], "worker", &worker))).await;
    assert_eq!(
        catalog.calls(),
        4,
        "what is too large to be remembered pushes nothing out"
    );
}

/// Returns roots that were not requested.
#[derive(Debug)]
struct MismatchedCatalog(Vec<DiscoveredRoot>);

impl ExecutorCatalog for MismatchedCatalog {
    fn read_config(&self, read: ReadEnvironmentConfig) -> FileFuture<EnvironmentConfig> {
        NoCatalog.read_config(read)
    }

    fn discover_roots(&self, _: DiscoverRoots) -> FileFuture<DiscoveredRoots> {
        let roots = self.0.clone();
        ready(Ok(DiscoveredRoots { roots })).boxed()
    }

    fn discover(&self, discover: DiscoverCapabilities) -> FileFuture<DiscoveredCapabilities> {
        NoCatalog.discover(discover)
    }
}

#[tokio::test]
async fn mismatched_discovery_answer_is_reported() {
    let cache = CapabilityCache::default();
    for answer in [
        vec![],
        vec![empty("a")],
        vec![empty("b"), empty("a")],
        vec![empty("a"); 3],
    ] {
        let worker = Arc::new(environment_with("A", Arc::new(MismatchedCatalog(answer))));
        let available = within(cache.project(&step(&["a", "b"], "worker", &worker))).await;
        assert_eq!(available.failed.len(), 2);
        for failed in &available.failed {
            assert!(
                matches!(failed.error, DiscoverError::Answer(_)),
                "{failed:?}"
            );
        }
    }
    assert_eq!(cache.size(), (0, 0));
}

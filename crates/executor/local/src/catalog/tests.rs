use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use exec_env::{environment::ExecutorCatalog, filesystem::FileFuture};
use exec_wire::{
    discovery::DiscoverCapabilities, environment::ReadEnvironmentConfig, path_uri::PathUri,
};
use futures_util::future::poll_fn;

use super::{CatalogConfig, LocalCatalog, json_len};
use crate::filesystem::LocalFileSystem;

fn catalog(home: &Path) -> LocalCatalog {
    LocalCatalog::new(CatalogConfig {
        files: Arc::new(LocalFileSystem::default()),
        codex_home: home.to_owned(),
        user_home: None,
        system: home.join("system"),
        hostname: None,
    })
}

/// Returns the share of an operation's time that was spent polling on the calling thread.
async fn polling_share<T>(mut operation: FileFuture<T>) -> f64 {
    let (begin, mut polled) = (Instant::now(), Duration::ZERO);
    let result = poll_fn(|cx| {
        let start = Instant::now();
        let polling = operation.as_mut().poll(cx);
        polled += start.elapsed();
        polling
    });
    assert!(result.await.is_ok());
    polled.as_secs_f64() / begin.elapsed().as_secs_f64()
}

#[tokio::test]
async fn slow_skill_parsing_does_not_block_the_thread() {
    let home = tempfile::tempdir().unwrap();
    let intricate = format!("---\nx: [{}\n---\n", "a,".repeat(60_000));
    for skill in ["skills/a", "skills/b", "plugins/cache/m/p/1"] {
        let skill = home.path().join(skill);
        fs::create_dir_all(skill.join(".codex-plugin")).unwrap();
        fs::write(skill.join(".codex-plugin/plugin.json"), "{}").unwrap();
        fs::write(skill.join("SKILL.md"), &intricate).unwrap();
    }
    let request = DiscoverCapabilities {
        cwd: PathUri::from_native(home.path()).unwrap(),
        sandbox: None,
    };
    assert!(polling_share(catalog(home.path()).discover(request)).await < 0.5);
}

#[tokio::test]
async fn slow_config_parsing_does_not_block_the_thread() {
    let home = tempfile::tempdir().unwrap();
    let long: String = (0..100_000).map(|key| format!("k{key} = 1\n")).collect();
    fs::write(home.path().join("config.toml"), long).unwrap();
    let request = ReadEnvironmentConfig {
        cwd: PathUri::from_native(home.path()).unwrap(),
        config_paths: vec![vec!["k1".to_owned()]],
        requirements_paths: Vec::new(),
    };
    assert!(polling_share(catalog(home.path()).read_config(request)).await < 0.5);
}

#[test]
fn json_length_matches_serde_json() {
    let controls: String = (0..=0x80).map(char::from).collect();
    for text in ["", "plain", "caf\u{e9} \u{1f600}", &controls] {
        let json = serde_json::to_string(text).unwrap();
        assert_eq!(json_len(text), json.len() - 2, "{text:?}");
    }
}

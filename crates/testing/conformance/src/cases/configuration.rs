//! Configuration layers of the executor's host.

use std::{
    fs,
    path::{Path, PathBuf},
};

use exec_wire::{
    environment::{EnvironmentConfig, ReadEnvironmentConfig},
    path_uri::PathUri,
};

use crate::{
    bounded_wait::{done, host_fails, refused},
    scratch_dir::ScratchDir,
    subject::{Subject, uri},
};

fn keys(paths: &[&[&str]]) -> Vec<Vec<String>> {
    let path = |path: &&[&str]| path.iter().map(|&key| key.to_owned()).collect();
    paths.iter().map(path).collect()
}

fn reading(cwd: &Path, paths: &[&[&str]]) -> ReadEnvironmentConfig {
    ReadEnvironmentConfig {
        cwd: uri(cwd),
        config_paths: keys(paths),
        requirements_paths: keys(&[&["models"]]),
    }
}

async fn read(subject: &Subject, cwd: &Path, paths: &[&[&str]]) -> EnvironmentConfig {
    done(subject.catalog.read_config(reading(cwd, paths))).await
}

/// Returns the user's home directory and the configuration directory of the subject.
pub(crate) async fn homes(subject: &Subject) -> (PathBuf, PathBuf) {
    let config = read(subject, Path::new("/"), &[&["model"]]).await;
    let home = config.user_home_dir.expect("subject has no home directory");
    let codex = config.codex_home_dir.to_native().unwrap();
    (home.to_native().unwrap(), codex)
}

fn configure(directory: &Path, text: &str) {
    fs::create_dir_all(directory).unwrap();
    fs::write(directory.join("config.toml"), text).unwrap();
}

fn texts(config: &EnvironmentConfig) -> Vec<&str> {
    let layers = config.config.layers.iter();
    layers.map(|layer| layer.toml.as_str()).collect()
}

pub async fn missing_configuration_yields_no_layer(subject: &Subject) {
    let config = read(subject, Path::new("/nowhere"), &[&["model"]]).await;
    assert_eq!(config.config, Default::default());
    assert_eq!(config.requirements, Default::default());
}

pub async fn selected_user_keys_are_returned(subject: &Subject) {
    let (_, codex) = homes(subject).await;
    let text = "model = 'm'\nother = 1\n[servers.\"do.t\"]\nargs = ['a']\nurl = 'u'\n";
    configure(&codex, text);
    let paths: [&[&str]; 2] = [&["servers", "do.t", "args"], &["model"]];
    let config = read(subject, Path::new("/"), &paths).await;
    let selected = "model = \"m\"\n\n[servers.\"do.t\"]\nargs = [\"a\"]\n";
    assert_eq!(texts(&config), [selected]);
    assert_eq!(config.config.layers[0].base_dir, uri(&codex));
    assert_eq!(config.config.cloud_insertion_index, 0);
    assert_eq!(
        texts(&read(subject, Path::new("/"), &[&["servers.do"]]).await),
        [""; 0]
    );
}

pub async fn only_trusted_project_layers_are_returned(subject: &Subject) {
    let (_, codex) = homes(subject).await;
    let scratch = ScratchDir::new();
    scratch.file("project/.git/HEAD", "");
    for (directory, model) in [("", "root"), ("a", "a"), ("a/b", "b")] {
        let directory = scratch.path("project").join(directory).join(".codex");
        configure(&directory, &format!("model = '{model}'\nnotify = ['x']\n"));
    }
    let cwd = scratch.path("project/a/b");
    let trust = |levels: &[(&str, &str)]| {
        let mut text = "model = 'user'\n".to_owned();
        for (directory, level) in levels {
            let path = scratch.path("project").join(directory);
            let path = path.to_str().unwrap().trim_end_matches('/');
            text += &format!("[projects.'{path}']\ntrust_level = '{level}'\n");
        }
        configure(&codex, &text);
    };
    let cases = [
        (vec![], "user"),
        (vec![("", "trusted")], "user root a b"),
        (vec![("", "trusted"), ("a", "untrusted")], "user root b"),
        (vec![("", "untrusted"), ("a/b", "trusted")], "user b"),
    ];
    for (levels, models) in cases {
        trust(&levels);
        // Keys that a project must not set are left out.
        let config = read(subject, &cwd, &[&["model"], &["notify"]]).await;
        let expected: Vec<_> = models
            .split(' ')
            .map(|model| format!("model = \"{model}\"\n"))
            .collect();
        assert_eq!(texts(&config), expected, "{levels:?}");
    }
}

pub async fn malformed_file_fails_unless_untrusted(subject: &Subject) {
    let (_, codex) = homes(subject).await;
    let scratch = ScratchDir::new();
    let project = scratch.path("project");
    scratch.file("project/.codex/config.toml", "no toml");
    assert!(texts(&read(subject, &project, &[&["model"]]).await).is_empty());
    let path = project.to_str().unwrap();
    configure(
        &codex,
        &format!("[projects.'{path}']\ntrust_level = 'trusted'\n"),
    );
    let text = host_fails(
        subject
            .catalog
            .read_config(reading(&project, &[&["model"]])),
    )
    .await;
    assert!(text.contains(".codex/config.toml"), "{text}");
    configure(&codex, "model = ");
    let text = host_fails(
        subject
            .catalog
            .read_config(reading(&project, &[&["model"]])),
    )
    .await;
    assert!(text.contains("config.toml"), "{text}");
}

pub async fn configuration_request_without_keys_is_refused(subject: &Subject) {
    let nothing = ReadEnvironmentConfig {
        requirements_paths: Vec::new(),
        ..reading(Path::new("/"), &[])
    };
    refused(subject.catalog.read_config(nothing)).await;
    refused(subject.catalog.read_config(reading(Path::new("/"), &[&[]]))).await;
    let elsewhere = ReadEnvironmentConfig {
        cwd: PathUri::parse("file:///C:/elsewhere").unwrap(),
        ..reading(Path::new("/"), &[&["model"]])
    };
    refused(subject.catalog.read_config(elsewhere)).await;
}

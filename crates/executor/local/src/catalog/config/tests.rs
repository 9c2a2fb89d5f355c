use std::{fs, sync::Arc};

use exec_env::filesystem::FileError;
use exec_wire::{
    environment::{EnvironmentConfig, ReadEnvironmentConfig},
    path_uri::PathUri,
};
use tempfile::TempDir;

use super::{ConfigLoadError, managed_requirements, read, select_keys};
use crate::{catalog::CatalogConfig, filesystem::LocalFileSystem};

/// A temporary machine with a project in `project` and the configuration files that a test writes.
struct TestMachine(TempDir);

impl TestMachine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.write("project/.codex/config.toml", "model = 'project'\n");
        machine
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let root = self.0.path().display().to_string();
        fs::write(path, text.replace('@', &root)).unwrap();
    }

    async fn read(&self, config: &str, requirements: &str) -> Result<EnvironmentConfig, FileError> {
        let root = self.0.path();
        let catalog = CatalogConfig {
            files: Arc::new(LocalFileSystem::default()),
            codex_home: root.join("home"),
            user_home: None,
            system: root.join("system"),
            hostname: Some("host".to_owned()),
        };
        let request = ReadEnvironmentConfig {
            cwd: PathUri::from_native(&root.join("project")).unwrap(),
            config_paths: vec![vec![config.to_owned()]],
            requirements_paths: vec![vec![requirements.to_owned()]],
        };
        read(&catalog, request).await
    }

    /// Returns the `model` of each layer.
    async fn models(&self) -> Vec<String> {
        let config = self.read("model", "models").await.unwrap();
        let layers = config.config.layers.into_iter();
        let model = |toml: String| toml.split('"').nth(1).unwrap().to_owned();
        layers.map(|layer| model(layer.toml)).collect()
    }
}

const TRUSTED: &str = "[projects.'@/project']\ntrust_level = 'trusted'\n";
const UNTRUSTED: &str = "[projects.'@/project']\ntrust_level = 'untrusted'\n";

#[tokio::test]
async fn layers_are_ordered_by_precedence() {
    let machine = TestMachine::new();
    machine.write("system/config.toml", "model = 'system'\n");
    machine.write("home/config.toml", &format!("model = 'user'\n{TRUSTED}"));
    machine.write("system/managed_config.toml", "model = 'managed'\n");
    assert_eq!(
        machine.models().await,
        ["system", "user", "project", "managed"]
    );
    let config = machine.read("model", "models").await.unwrap();
    assert_eq!(config.config.cloud_insertion_index, 1);
    assert_eq!(config.hostname.as_deref(), Some("host"));
}

#[tokio::test]
async fn highest_layer_decides_trust() {
    // Trust in the system, user and managed configuration, and whether the project layer is used.
    let cases = [
        (TRUSTED, "", "", true),
        (TRUSTED, UNTRUSTED, "", false),
        (UNTRUSTED, TRUSTED, "", true),
        ("", TRUSTED, UNTRUSTED, false),
        ("", "", TRUSTED, true),
        ("", "", "", false),
    ];
    for (system, user, managed, counts) in cases {
        let machine = TestMachine::new();
        machine.write("system/config.toml", system);
        machine.write("home/config.toml", user);
        machine.write("system/managed_config.toml", managed);
        let is_loaded = !machine.models().await.is_empty();
        assert_eq!(is_loaded, counts, "{system:?} {user:?} {managed:?}");
    }
}

#[tokio::test]
async fn managed_configuration_becomes_requirements() {
    let machine = TestMachine::new();
    machine.write(
        "system/requirements.toml",
        "allowed_sandbox_modes = ['workspace-write']\n",
    );
    machine.write("system/managed_config.toml", "sandbox_mode = 'read-only'\n");
    let config = machine
        .read("model", "allowed_sandbox_modes")
        .await
        .unwrap();
    let layers = config.requirements.layers.iter();
    let texts: Vec<_> = layers.map(|layer| &*layer.toml).collect();
    let (system, managed) = ("\"workspace-write\"", "\"read-only\"");
    let text = |mode| format!("allowed_sandbox_modes = [{mode}]\n");
    assert_eq!(texts, [text(system), text(managed)]);
    assert_eq!(config.requirements.cloud_insertion_index, 1);
}

#[tokio::test]
async fn invalid_configuration_files_fail_every_read() {
    for file in ["requirements.toml", "managed_config.toml", "config.toml"] {
        let machine = TestMachine::new();
        machine.write(&format!("system/{file}"), "no toml");
        let error = machine.read("model", "models").await.unwrap_err();
        assert!(
            matches!(&error, FileError::Host(text) if text.contains(file)),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn account_home_is_not_a_project_layer() {
    let machine = TestMachine::new();
    let root = machine.0.path();
    fs::create_dir(root.join("home")).unwrap();
    fs::remove_dir_all(root.join("project/.codex")).unwrap();
    // Through a symlink.
    std::os::unix::fs::symlink(root.join("home"), root.join("project/.codex")).unwrap();
    machine.write("home/config.toml", &format!("model = 'user'\n{TRUSTED}"));
    assert_eq!(machine.models().await, ["user"]);
}

const LAYER: &str = r#"
zeta = 1
alpha = "a"
[servers."do.tted"]
command = "x"
args = ["a", "b"]
env = { A = "1", B = "2" }
[[hooks.stop]]
c = 1
"#;

fn select(paths: &[&[&str]]) -> String {
    let keys = |path: &&[&str]| path.iter().map(|&key| key.to_owned()).collect();
    let paths: Vec<Vec<String>> = paths.iter().map(keys).collect();
    let layer = toml::from_str(LAYER).unwrap();
    toml::to_string(&select_keys(&layer, &paths)).unwrap()
}

#[test]
fn selected_keys_are_literal_and_keep_the_layer_order() {
    assert_eq!(
        select(&[&["alpha"], &["zeta"]]),
        "zeta = 1\nalpha = \"a\"\n"
    );
    let args = "[servers.\"do.tted\"]\nargs = [\"a\", \"b\"]\n";
    assert_eq!(select(&[&["servers", "do.tted", "args"]]), args);
    assert_eq!(select(&[&["servers.do"]]), "");
    assert_eq!(select(&[&[""]]), "");
}

#[test]
fn inline_tables_and_arrays_of_tables_are_serialized_as_tables() {
    let env = "[servers.\"do.tted\".env]\nB = \"2\"\n";
    assert_eq!(select(&[&["servers", "do.tted", "env", "B"]]), env);
    assert_eq!(select(&[&["hooks"]]), "[[hooks.stop]]\nc = 1\n");
}

#[test]
fn selecting_a_table_includes_its_parts() {
    let whole = select(&[&["servers"]]);
    assert_eq!(
        select(&[&["servers", "do.tted", "args"], &["servers"]]),
        whole
    );
}

#[test]
fn non_table_value_on_the_path_is_selected() {
    assert_eq!(select(&[&["alpha", "below"]]), "alpha = \"a\"\n");
    assert_eq!(
        select(&[&["hooks", "stop", "0"]]),
        "[[hooks.stop]]\nc = 1\n"
    );
    assert_eq!(select(&[&["servers", "other", "args"]]), "[servers]\n");
}

fn derived_requirements(managed: &str) -> Result<String, ConfigLoadError> {
    let table = managed_requirements(&toml::from_str(managed).unwrap())?;
    Ok(toml::to_string(&table).unwrap())
}

#[test]
fn managed_values_become_the_only_allowed_ones() {
    let pairs = [
        ("model = 'x'", ""),
        (
            "approval_policy = 'never'",
            "allowed_approval_policies = [\"never\"]\n",
        ),
        (
            "approval_policy = 'on-failure'",
            "allowed_approval_policies = [\"on-request\"]\n",
        ),
        (
            "approvals_reviewer = 'user'",
            "allowed_approvals_reviewers = [\"user\"]\n",
        ),
        (
            "approvals_reviewer = 'auto_review'",
            "allowed_approvals_reviewers = [\"auto_review\", \"user\"]\n",
        ),
        (
            "sandbox_mode = 'read-only'",
            "allowed_sandbox_modes = [\"read-only\"]\n",
        ),
        (
            "sandbox_mode = 'danger-full-access'",
            "allowed_sandbox_modes = [\"read-only\", \"danger-full-access\"]\n",
        ),
        (
            "approval_policy = { granular = { sandbox_approval = true, rules = true, \
             mcp_elicitations = false } }",
            "[[allowed_approval_policies]]\n\n[allowed_approval_policies.granular]\n\
             sandbox_approval = true\nrules = true\nskill_approval = false\n\
             request_permissions = false\nmcp_elicitations = false\n",
        ),
    ];
    for (managed, expected) in pairs {
        assert_eq!(
            derived_requirements(managed).unwrap(),
            expected,
            "{managed}"
        );
    }
}

#[test]
fn invalid_managed_value_is_an_error() {
    for managed in [
        "approval_policy = 'bogus'",
        "approval_policy = 5",
        "sandbox_mode = 'x'",
    ] {
        assert!(derived_requirements(managed).is_err(), "{managed}");
    }
}

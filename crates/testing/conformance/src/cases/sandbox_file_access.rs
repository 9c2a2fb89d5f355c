//! File access of processes under a sandbox policy.

use std::{fs, path::Path};

use exec_env::environment::Command;

use crate::{
    difference::Difference,
    followed_process::EventHistory,
    sandbox_policy::{PolicyBuilder, glob, path, special},
    scratch_dir::{ScratchDir, names},
    subject::{Subject, uri},
};

/// Runs a script under a policy until it exits.
pub(super) async fn run(
    subject: &Subject,
    policy: &PolicyBuilder,
    script: &str,
    arguments: &[&Path],
) -> EventHistory {
    let arguments: Vec<_> = arguments
        .iter()
        .map(|path| path.to_str().expect("temporary path is not UTF-8"))
        .collect();
    let command = policy.sandboxed_command(subject.sh(script, &arguments));
    subject.start(command).await.finish().await
}

/// Runs a script that must succeed and returns its stdout.
async fn succeeds(
    subject: &Subject,
    policy: &PolicyBuilder,
    script: &str,
    paths: &[&Path],
) -> String {
    let told = run(subject, policy, script, paths).await;
    let stderr = String::from_utf8_lossy(&told.stderr()).into_owned();
    assert_eq!(told.code(), 0, "{script}: {stderr}");
    assert!(
        !told.exit().unwrap().sandbox_denied,
        "successful command is reported as denied"
    );
    told.text()
}

/// Runs a script that must fail with this error text.
async fn denied(
    subject: &Subject,
    policy: &PolicyBuilder,
    script: &str,
    paths: &[&Path],
    reason: &str,
) {
    let told = run(subject, policy, script, paths).await;
    let stderr = String::from_utf8_lossy(&told.stderr()).into_owned();
    assert_ne!(told.code(), 0, "{script}");
    assert!(stderr.contains(reason), "{script}: {stderr}");
    let denied = told.exit().unwrap().sandbox_denied;
    let spoken_of = reason != NOT_FOUND;
    assert_eq!(denied, spoken_of, "{script}: {stderr}");
}

const READ_ONLY: &str = "Read-only file system";
const FORBIDDEN: &str = "Permission denied";
const NOT_FOUND: &str = "No such file or directory";

const READ: &str = r#"cat "$1""#;
const WRITE: &str = r#"echo new >"$1""#;

pub async fn read_only_sandbox_allows_reads_and_denies_writes(subject: &Subject) {
    let scratch = ScratchDir::new();
    let (file, new) = (scratch.file("file", "content"), scratch.path("new"));
    let policy = PolicyBuilder::read_only();
    assert_eq!(succeeds(subject, &policy, READ, &[&file]).await, "content");
    for script in [WRITE, r#"mkdir "$1""#, r#"ln -s x "$1""#, r#"touch "$1""#] {
        denied(subject, &policy, script, &[&new], READ_ONLY).await;
    }
    for script in [
        WRITE,
        r#"rm "$1""#,
        r#"mv "$1" "$1.moved""#,
        r#"chmod 777 "$1""#,
    ] {
        denied(subject, &policy, script, &[&file], READ_ONLY).await;
    }
    let script = r#"(echo new >"$1") 2>&1; exit 7"#;
    let told = run(subject, &policy, script, &[&file]).await;
    assert_eq!(told.code(), 7, "the code is the command's");
    assert!(told.exit().unwrap().sandbox_denied, "on either stream");
    assert_eq!(fs::read(&file).unwrap(), b"content");
    assert_eq!(names(scratch.root()), ["file"]);
}

pub async fn read_only_sandbox_with_network_denies_writes(subject: &Subject) {
    let scratch = ScratchDir::new();
    let (file, new) = (scratch.file("file", "content"), scratch.path("new"));
    let policy = PolicyBuilder::read_only().with_network();
    assert_eq!(succeeds(subject, &policy, READ, &[&file]).await, "content");
    for script in [
        r#"echo new >"$1""#,
        r#"rm "$1""#,
        r#"mv "$1" "$2""#,
        r#"ln "$1" "$2""#,
        r#"mkdir "$2""#,
        r#"ln -s x "$2""#,
        r#"mkfifo "$2""#,
        r#": >"$2""#,
    ] {
        let told = run(subject, &policy, script, &[&file, &new]).await;
        assert_ne!(told.code(), 0, "{script}");
        assert!(told.exit().unwrap().sandbox_denied, "{script}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"content");
    assert_eq!(names(scratch.root()), ["file"]);
}

pub async fn sandbox_allows_writes_only_inside_the_workspace(subject: &Subject) {
    let scratch = ScratchDir::new();
    let (root, beside) = (scratch.directory("root"), scratch.directory("beside"));
    scratch.file("root/old", "old");
    let policy = PolicyBuilder::workspace(&root);
    let script = r#"
        set -e
        cd "$1"
        echo new >new
        cat old >>new
        mkdir -p a/b
        mv new a/b/moved
        ln -s b a/link
        ln a/b/moved a/hard
        echo more >>a/link/moved
        rm old
        cat a/hard
    "#;
    assert_eq!(
        succeeds(subject, &policy, script, &[&root]).await,
        "new\noldmore\n"
    );
    assert_eq!(fs::read(root.join("a/b/moved")).unwrap(), b"new\noldmore\n");
    denied(subject, &policy, WRITE, &[&beside.join("new")], READ_ONLY).await;
    // A symlink in the workspace points outside, where nothing may change.
    scratch.link("root/out", &beside);
    denied(subject, &policy, WRITE, &[&root.join("out/new")], READ_ONLY).await;
    denied(
        subject,
        &policy,
        r#"mv "$1" "$2""#,
        &[&root.join("a"), &beside],
        READ_ONLY,
    )
    .await;
    assert!(names(&beside).is_empty());
}

pub async fn existing_metadata_directories_are_read_only_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let root = scratch.directory("root");
    let policy = PolicyBuilder::workspace(&root);
    for name in [".git", ".agents", ".codex", ".aws"] {
        let config = scratch.file(format!("root/{name}/config"), "kept");
        assert_eq!(succeeds(subject, &policy, READ, &[&config]).await, "kept");
        denied(subject, &policy, WRITE, &[&config], READ_ONLY).await;
        let new = config.with_file_name("new");
        denied(subject, &policy, WRITE, &[&new], READ_ONLY).await;
        let script = r#"rm -r "$1""#;
        let told = run(subject, &policy, script, &[&root.join(name)]).await;
        assert_ne!(told.code(), 0);
        let moved = root.join("moved");
        let script = r#"mv "$1" "$2""#;
        let told = run(subject, &policy, script, &[&root.join(name), &moved]).await;
        assert_ne!(told.code(), 0);
        assert_eq!(fs::read(&config).unwrap(), b"kept");
        // Only direct children of the root are protected.
        scratch.directory(format!("root/nested/{name}"));
        let nested = root.join("nested").join(name).join("new");
        succeeds(subject, &policy, WRITE, &[&nested]).await;
    }
}

pub async fn missing_metadata_directories_cannot_be_created_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let root = scratch.directory("root");
    let (policy, gate) = (PolicyBuilder::workspace(&root), scratch.gate());
    let other = scratch.directory("root/other");
    for name in [".git", ".agents", ".codex", ".aws"] {
        let path = root.join(name);
        for script in [
            r#"mkdir "$1""#,
            r#"echo x >"$1""#,
            r#"ln -s other "$1""#,
            r#"mv "$2" "$1""#,
            r#"mkfifo "$1""#,
            r#"mkdir -p "$1/hooks""#,
        ] {
            let told = run(subject, &policy, script, &[&path, &other]).await;
            assert_ne!(told.code(), 0, "{script} {name}");
            let denied = told.exit().unwrap().sandbox_denied;
            // Creating an existing directory fails with the normal error.
            let seen = !denied && subject.differs(Difference::MetadataIsSeen);
            let stderr = String::from_utf8_lossy(&told.stderr()).into_owned();
            let taken = seen && (stderr.contains("File exists") || stderr.contains("directory"));
            assert!(denied || taken, "{script} {name}: {stderr}");
            assert_eq!(names(&root), ["other"], "{script} {name}");
        }
    }
    let script = r#"mkdir "$1/made" && echo ready && read line <"$2" && ls -A "$1""#;
    let arguments = [root.to_str().unwrap(), gate.path()];
    let mut running = subject
        .start(policy.sandboxed_command(subject.sh(script, &arguments)))
        .await;
    running.until_stdout_contains("ready").await;
    let seen = subject.differs(Difference::MetadataIsSeen);
    if !seen {
        assert_eq!(
            names(&root),
            ["made", "other"],
            "metadata directory is visible"
        );
    }
    gate.open();
    let told = running.finish().await;
    assert_eq!(told.code(), 0);
    assert_eq!(told.text().contains(".git"), seen);
    assert_eq!(names(&root), ["made", "other"]);
}

pub async fn metadata_directory_named_by_a_policy_is_writable_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let root = scratch.directory("root");
    let config = scratch.file("root/.git/config", "old");
    let policy = PolicyBuilder::workspace(&root).entry(path(&root.join(".git")), "write");
    succeeds(subject, &policy, WRITE, &[&config]).await;
    assert_eq!(fs::read(&config).unwrap(), b"new\n");
}

pub async fn denied_path_cannot_be_read_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let (secret, open) = (
        scratch.file("a/secret", "secret"),
        scratch.file("a/open", "open"),
    );
    let below = scratch.file("closed/below", "secret");
    let closed = scratch.path("closed");
    for base in [
        PolicyBuilder::read_only(),
        PolicyBuilder::workspace(scratch.root()),
    ] {
        let policy = base
            .entry(path(&secret), "deny")
            .entry(path(&closed), "none");
        assert_eq!(succeeds(subject, &policy, READ, &[&open]).await, "open");
        denied(subject, &policy, READ, &[&secret], FORBIDDEN).await;
        denied(subject, &policy, r#"ls "$1""#, &[&closed], FORBIDDEN).await;
        for path in [&secret, &below] {
            let told = run(subject, &policy, READ, &[path]).await;
            assert_ne!(told.code(), 0);
            assert!(told.stdout().is_empty());
            let told = run(subject, &policy, WRITE, &[path]).await;
            assert_ne!(told.code(), 0);
        }
        assert_eq!(fs::read(&secret).unwrap(), b"secret");
        assert_eq!(fs::read(&below).unwrap(), b"secret");
    }
}

pub async fn denied_globs_are_expanded_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let root = scratch.directory("root");
    let plain = scratch.file("root/plain", "plain");
    let env = [".env", "a/.env", "a/b/.env", ".hidden/.env"]
        .map(|name| scratch.file(format!("root/{name}"), "secret"));
    let absolute = format!("{}/**/.env", root.display());
    for pattern in ["**/.env", &absolute] {
        let policy = PolicyBuilder::workspace(&root).entry(glob(pattern), "deny");
        assert_eq!(succeeds(subject, &policy, READ, &[&plain]).await, "plain");
        for path in &env {
            denied(subject, &policy, READ, &[path], FORBIDDEN).await;
        }
    }
}

pub async fn unlisted_path_does_not_exist_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let listed = scratch.file("listed/file", "listed");
    let unlisted = scratch.file("unlisted/file", "unlisted");
    let policy = PolicyBuilder::minimal().entry(path(&scratch.path("listed")), "read");
    assert_eq!(succeeds(subject, &policy, READ, &[&listed]).await, "listed");
    denied(subject, &policy, READ, &[&unlisted], NOT_FOUND).await;
    let script = r#"ls "$1""#;
    let seen = succeeds(subject, &policy, script, &[scratch.root()]).await;
    assert_eq!(seen, "listed\n");
    denied(subject, &policy, WRITE, &[&listed], READ_ONLY).await;
    let policy = policy.entry(path(&listed), "write");
    if subject.differs(Difference::NoWritableFiles) {
        let told = run(subject, &policy, WRITE, &[&listed]).await;
        return assert_ne!(told.code(), 0);
    }
    succeeds(subject, &policy, WRITE, &[&listed]).await;
}

pub async fn approved_root_write_keeps_denied_reads_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let (secret, open) = (scratch.file("secret/file", "hidden"), scratch.path("new"));
    let mut policy = PolicyBuilder::nothing()
        .entry(special("root"), "write")
        .entry(path(&scratch.path("secret")), "deny")
        .with("sandboxOverride", "escalatedSandboxWithRestrictions".into());
    for name in ["/.git", "/.agents", "/.codex", "/.aws"] {
        policy = policy.entry(path(Path::new(name)), "write");
    }
    succeeds(subject, &policy, WRITE, &[&open]).await;
    assert_eq!(fs::read(&open).unwrap(), b"new\n");
    denied(subject, &policy, READ, &[&secret], FORBIDDEN).await;
    let directory = scratch.path("secret");
    denied(subject, &policy, r#"ls "$1""#, &[&directory], FORBIDDEN).await;
    let script = r#"mv "$1" "$1.moved" 2>/dev/null || exit 9"#;
    let told = run(subject, &policy, script, &[&directory]).await;
    assert_eq!(told.code(), 9, "a denied directory stays where it is");
    assert_eq!(fs::read(&secret).unwrap(), b"hidden");
}

pub async fn single_file_can_be_writable_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let (file, beside) = (scratch.file("file", "old"), scratch.file("beside", "old"));
    let policy = PolicyBuilder::read_only().entry(path(&file), "write");
    if subject.differs(Difference::NoWritableFiles) {
        let told = run(subject, &policy, WRITE, &[&file]).await;
        assert_ne!(told.code(), 0);
        return assert_eq!(fs::read(&file).unwrap(), b"old");
    }
    succeeds(subject, &policy, WRITE, &[&file]).await;
    assert_eq!(fs::read(&file).unwrap(), b"new\n");
    denied(subject, &policy, WRITE, &[&beside], READ_ONLY).await;
    denied(subject, &policy, WRITE, &[&scratch.path("new")], READ_ONLY).await;
}

pub async fn most_specific_entry_wins_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let root = scratch.directory("root");
    let inner = scratch.file("root/kept/open/file", "old");
    let kept = scratch.file("root/kept/file", "old");
    let policy = PolicyBuilder::workspace(&root)
        .entry(path(&root.join("kept")), "read")
        .entry(path(&root.join("kept/open")), "write");
    succeeds(subject, &policy, WRITE, &[&root.join("new")]).await;
    denied(subject, &policy, WRITE, &[&kept], READ_ONLY).await;
    succeeds(subject, &policy, WRITE, &[&inner]).await;
    let policy = PolicyBuilder::read_only()
        .entry(path(&root.join("kept")), "deny")
        .entry(path(&root.join("kept/open")), "write");
    succeeds(subject, &policy, WRITE, &[&inner]).await;
    let told = run(subject, &policy, READ, &[&kept]).await;
    assert_ne!(told.code(), 0);
}

pub async fn temporary_directory_is_writable_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let directory = scratch.directory("temporary");
    let policy = PolicyBuilder::read_only().entry(special("tmpdir"), "write");
    let new = directory.join("new");
    let command = || policy.sandboxed_command(subject.sh(WRITE, &[new.to_str().unwrap()]));
    let told = subject.start(command()).await.finish().await;
    assert_ne!(told.code(), 0, "no variable names it");
    let mut named = command();
    let value = directory.to_str().unwrap().to_owned();
    named.env.insert("TMPDIR".to_owned(), value);
    assert_eq!(subject.start(named).await.finish().await.code(), 0);
    let mut made = names(&directory);
    if subject.differs(Difference::MetadataIsSeen) {
        assert!(made.len() == 2, "{made:?}");
        made.retain(|name| !name.contains("mount-targets"));
    }
    assert_eq!(made, ["new"]);
}

pub async fn command_starts_in_its_working_directory_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let root = scratch.directory("root/deep");
    for policy in [PolicyBuilder::read_only(), PolicyBuilder::workspace(&root)] {
        let command = Command {
            cwd: uri(&root),
            arg0: Some("renamed".to_owned()),
            ..policy.sandboxed_command(subject.probe(&["arguments", "x"]))
        };
        let told = subject.start(command).await.finish().await;
        assert_eq!(told.text(), "renamed\narguments\nx\n");
        let command = Command {
            cwd: uri(&root),
            ..policy.sandboxed_command(subject.command(&["/bin/pwd"]))
        };
        let told = subject.start(command).await.finish().await;
        assert_eq!(told.text(), format!("{}\n", root.display()));
    }
}

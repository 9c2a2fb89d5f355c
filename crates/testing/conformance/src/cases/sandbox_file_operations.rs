//! File operations under a sandbox policy.

use std::{fs, path::Path};

use exec_wire::{
    fs::{OpenMode, SearchMatch, WalkEntry},
    path_uri::PathUri,
};
use serde_json::json;

use crate::{
    bounded_wait::within,
    bounded_wait::{done, host_fails, invalid, invalid_or_host_fails, not_found, refused, unknown},
    difference::Difference,
    pattern,
    sandbox_policy::SandboxedFiles,
    sandbox_policy::{PolicyBuilder, glob, path, special},
    scratch_dir::{ScratchDir, names},
    subject::{Subject, uri},
};

/// Returns a policy with one writable directory and the minimal readable set.
fn narrow(root: &Path) -> PolicyBuilder {
    PolicyBuilder::minimal().entry(path(root), "write")
}

/// Returns the last component of a path.
fn name(path: &PathUri) -> String {
    let path = path.to_native().unwrap();
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

pub async fn sandboxed_files_are_read_and_written(subject: &Subject) {
    let scratch = ScratchDir::new();
    let root = scratch.directory("root");
    for (policy, narrow) in [
        (narrow(&root), true),
        (PolicyBuilder::workspace(&root), false),
    ] {
        let under = SandboxedFiles { subject, policy };
        let (directory, file) = (root.join("a"), root.join("a/file"));
        done(under.create(&directory)).await;
        done(under.write(&file, "content")).await;
        assert_eq!(fs::read(&file).unwrap(), b"content");
        assert_eq!(done(under.read(&file)).await, "content");
        assert_eq!(done(under.metadata(&file)).await.size, 7);
        assert_eq!(done(under.canonicalize(&file)).await, uri(&file));
        assert_eq!(done(under.list(&directory)).await.entries.len(), 1);
        // The four metadata directories exist as well where they are visible.
        let seen = narrow && subject.differs(Difference::MetadataIsSeen);
        let entries = if seen { 6 } else { 2 };
        assert_eq!(done(under.walk(&root)).await.entries.len(), entries);
        done(under.copy(&directory, &root.join("b"))).await;
        let rename = under.rename(&root.join("b/file"), &root.join("b/moved"));
        if subject.differs(Difference::NoRename) {
            unknown(rename).await;
        } else {
            done(rename).await;
            assert_eq!(fs::read(root.join("b/moved")).unwrap(), b"content");
        }
        done(under.remove(&root.join("b"))).await;
        done(under.remove(&directory)).await;
        assert!(names(&root).is_empty());
        not_found(under.remove(&directory)).await;
    }
}

pub async fn files_outside_the_sandbox_are_not_found(subject: &Subject) {
    let scratch = ScratchDir::new();
    let root = scratch.directory("root");
    let outside = scratch.file("outside/file", "outside");
    let directory = scratch.path("outside");
    scratch.link("root/link", &outside);
    let under = SandboxedFiles {
        subject,
        policy: narrow(&root),
    };
    for path in [&outside, &root.join("link"), &root.join("../outside/file")] {
        not_found(under.read(path)).await;
        not_found(under.canonicalize(path)).await;
        not_found(under.open(path, OpenMode::Read)).await;
    }
    not_found(under.metadata(&outside)).await;
    not_found(under.list(&directory)).await;
    not_found(under.walk(&directory)).await;
    not_found(under.remove(&outside)).await;
    not_found(under.copy(&directory, &root.join("copy"))).await;
    if subject.differs(Difference::NoSearch) {
        unknown(under.search(&directory, "outside")).await;
        unknown(under.find(&directory, "**")).await;
        unknown(under.rename(&outside, &root.join("moved"))).await;
    } else {
        not_found(under.search(&directory, "outside")).await;
        not_found(under.find(&directory, "**")).await;
        not_found(under.rename(&outside, &root.join("moved"))).await;
    }
    assert_eq!(fs::read(&outside).unwrap(), b"outside");
    assert_eq!(names(&root), ["link"]);
    // The minimal readable set exists although the policy does not list it.
    done(under.list(Path::new("/etc"))).await;
}

pub async fn denied_files_in_the_sandbox_are_invalid(subject: &Subject) {
    let scratch = ScratchDir::new();
    let (secret, plain) = (
        scratch.file("secret", "secret"),
        scratch.file("open", "open"),
    );
    let below = scratch.file("closed/below", "secret");
    for base in [
        PolicyBuilder::read_only(),
        PolicyBuilder::workspace(scratch.root()),
    ] {
        let policy = base
            .entry(path(&secret), "deny")
            .entry(path(&scratch.path("closed")), "deny");
        let under = SandboxedFiles { subject, policy };
        assert_eq!(done(under.read(&plain)).await, "open");
        invalid(under.read(&secret)).await;
        invalid(under.open(&secret, OpenMode::Read)).await;
        invalid(under.list(&scratch.path("closed"))).await;
        let told = done(under.metadata(&secret)).await;
        assert_eq!((told.is_file, told.size), (true, 0));
        let hidden = under.read(&below).await;
        assert!(hidden.is_err(), "{hidden:?}");
        invalid_or_host_fails(under.write(&secret, "new")).await;
        invalid_or_host_fails(under.remove(&secret)).await;
        assert_eq!(fs::read(&secret).unwrap(), b"secret");
    }
}

pub async fn writes_outside_the_sandbox_fail(subject: &Subject) {
    let scratch = ScratchDir::new();
    let root = scratch.directory("root");
    let inside = scratch.file("root/file", "inside");
    let outside = scratch.file("outside/file", "outside");
    let new = scratch.path("outside/new");
    scratch.link("root/link", scratch.path("outside"));
    let under = SandboxedFiles {
        subject,
        policy: PolicyBuilder::workspace(&root),
    };
    let through = root.join("link/new");
    for failure in [
        under.write(&outside, "new"),
        under.write(&new, "new"),
        under.write(&through, "new"),
        under.create(&new),
        under.remove(&outside),
        under.copy(&inside, &new),
    ] {
        let text = host_fails(failure).await;
        assert!(text.contains("Read-only file system"), "{text}");
    }
    let moved = scratch.path("outside/moved");
    if subject.differs(Difference::NoRename) {
        unknown(under.rename(&outside, &moved)).await;
    } else {
        let text = host_fails(under.rename(&outside, &moved)).await;
        assert!(text.contains("Read-only file system"), "{text}");
        host_fails(under.rename(&inside, &new)).await;
    }
    host_fails(under.open(&outside, OpenMode::Replace)).await;
    assert_eq!(fs::read(&outside).unwrap(), b"outside");
    assert_eq!(names(&scratch.path("outside")), ["file"]);
    // Reading from outside is allowed.
    done(under.copy(&outside, &root.join("copy"))).await;
}

pub async fn metadata_directories_in_the_sandbox_are_protected(subject: &Subject) {
    let scratch = ScratchDir::new();
    let root = scratch.directory("root");
    let config = scratch.file("root/.git/config", "kept");
    let other = scratch.directory("root/other");
    let under = SandboxedFiles {
        subject,
        policy: PolicyBuilder::workspace(&root),
    };
    host_fails(under.write(&config, "new")).await;
    host_fails(under.write(&root.join(".git/new"), "new")).await;
    invalid_or_host_fails(under.remove(&root.join(".git"))).await;
    for name in [".agents", ".codex", ".aws"] {
        let path = root.join(name);
        invalid_or_host_fails(under.write(&path, "new")).await;
        if subject.differs(Difference::MetadataIsSeen) {
            // The directory exists, and the source is empty.
            done(under.create(&path)).await;
            done(under.copy(&other, &path)).await;
        } else {
            invalid_or_host_fails(under.create(&path)).await;
            invalid_or_host_fails(under.rename(&other, &path)).await;
            invalid_or_host_fails(under.copy(&other, &path)).await;
        }
        assert_eq!(names(&root), [".git", "other"], "{name}");
    }
    assert_eq!(done(under.read(&config)).await, "kept");
}

pub async fn file_handles_work_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let root = scratch.directory("root");
    let content = pattern::bytes(3 << 20);
    let file = scratch.file("root/file", &content);
    for policy in [narrow(&root), PolicyBuilder::workspace(&root)] {
        let under = SandboxedFiles { subject, policy };
        let opened = done(under.open(&file, OpenMode::Read)).await;
        let block = done(opened.read_block(1 << 20, 1 << 20)).await;
        pattern::assert_same(&block.data, &content[1 << 20..][..1 << 20]);
        pattern::assert_same(&done(under.read(&file)).await, &content);
        let new = root.join("new");
        let opened = done(under.open(&new, OpenMode::Replace)).await;
        done(opened.write_block(0, "written".into())).await;
        drop(opened);
        assert_eq!(fs::read(&new).unwrap(), b"written");
    }
}

pub async fn search_skips_denied_paths_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let root = scratch.directory("root");
    for name in ["plain", "sub/plain", ".env", "sub/.env", "closed/plain"] {
        scratch.file(format!("root/{name}"), "needle\n");
    }
    let policy = PolicyBuilder::workspace(&root)
        .entry(glob("**/.env"), "deny")
        .entry(path(&root.join("closed")), "deny");
    let under = SandboxedFiles { subject, policy };
    if subject.differs(Difference::NoSearch) {
        unknown(under.search(&root, "needle")).await;
        unknown(under.find(&root, "**/plain")).await;
    } else {
        let found = done(under.search(&root, "needle")).await;
        let paths: Vec<_> = found
            .matches
            .iter()
            .map(|found: &SearchMatch| &found.path)
            .collect();
        let expected = [uri(&root.join("plain")), uri(&root.join("sub/plain"))];
        assert_eq!(paths, expected.iter().collect::<Vec<_>>());
        let found = done(under.find(&root, "**/plain")).await;
        assert_eq!(found.paths, expected);
    }
    let walked = done(under.walk(&root)).await;
    let below = |entry: &WalkEntry| {
        entry
            .path
            .to_native()
            .unwrap()
            .starts_with(root.join("closed"))
    };
    let below: Vec<_> = walked.entries.iter().filter(|entry| below(entry)).collect();
    assert_eq!(
        below.len(),
        1,
        "denied directory must be listed as empty: {below:?}"
    );
    // Only the listed parts of a tree are visible.
    let under = SandboxedFiles {
        subject,
        policy: PolicyBuilder::minimal().entry(path(&root.join("sub")), "read"),
    };
    let seen = done(under.list(&root)).await;
    let seen: Vec<_> = seen.entries.iter().map(|entry| &*entry.file_name).collect();
    assert_eq!(seen, ["sub"]);
    let walked = done(under.walk(&root)).await;
    let seen: Vec<_> = walked
        .entries
        .iter()
        .map(|entry| name(&entry.path))
        .collect();
    assert_eq!(seen, ["sub", ".env", "plain"]);
}

pub async fn policy_without_restrictions_for_an_operation_allows_it(subject: &Subject) {
    let scratch = ScratchDir::new();
    let file = scratch.file("file", "content");
    let under = SandboxedFiles {
        subject,
        policy: PolicyBuilder::read_only(),
    };
    assert_eq!(done(under.read(&file)).await, "content");
    assert_eq!(done(under.canonicalize(&file)).await, uri(&file));
    assert_eq!(done(under.walk(scratch.root())).await.entries.len(), 1);
    host_fails(under.write(&file, "new")).await;
    let unrestricted = json!({"type": "unrestricted"});
    for policy in [
        PolicyBuilder::nothing().entry(special("root"), "write"),
        PolicyBuilder::of(&json!({"type": "disabled"})),
        PolicyBuilder::of(&json!({"type": "external", "network": "restricted"})),
        PolicyBuilder::of(
            &json!({"type": "managed", "file_system": unrestricted, "network": "restricted"}),
        ),
    ] {
        let under = SandboxedFiles { subject, policy };
        done(under.write(&file, "new")).await;
        assert_eq!(done(under.read(&file)).await, "new");
    }
}

pub async fn changes_in_a_sandbox_apply_in_call_order(subject: &Subject) {
    let scratch = ScratchDir::new();
    let root = scratch.directory("root");
    let file = root.join("file");
    let under = SandboxedFiles {
        subject,
        policy: narrow(&root),
    };
    let other = SandboxedFiles {
        subject,
        policy: PolicyBuilder::workspace(&root),
    };
    let mut writes = Vec::new();
    for number in 0..100 {
        let writer = if number % 3 == 0 { &other } else { &under };
        writes.push(writer.write(&file, number.to_string()));
    }
    for write in writes {
        done(write).await;
    }
    assert_eq!(fs::read(&file).unwrap(), b"99");
}

pub async fn unenforceable_policy_is_refused_for_files(subject: &Subject) {
    let scratch = ScratchDir::new();
    let file = scratch.file("file", "content");
    for (policy, culprit) in [
        (
            PolicyBuilder::minimal()
                .entry(glob("**/file"), "read")
                .rooted(scratch.root()),
            "entries[1]",
        ),
        (
            PolicyBuilder::read_only().entry(glob("/**/file"), "deny"),
            "entries[1]",
        ),
        (
            PolicyBuilder::minimal().entry(special("project_roots"), "read"),
            "cwd",
        ),
        (
            narrow(scratch.root()).with("windowsSandboxLevel", json!("mxc")),
            "windowsSandboxLevel",
        ),
    ] {
        let under = SandboxedFiles { subject, policy };
        if culprit != "cwd" && subject.differs(Difference::FewerRefusals) {
            let read = within("response arrives", under.read(&file)).await;
            assert!(read.is_err(), "{read:?}");
            let written = within("response arrives", under.write(&file, "new")).await;
            assert!(written.is_err(), "{written:?}");
            continue;
        }
        let text = refused(under.read(&file)).await;
        assert!(text.contains(culprit), "{text}");
        let text = refused(under.write(&file, "new")).await;
        assert!(text.contains(culprit), "{text}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"content");
}

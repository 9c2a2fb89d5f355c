//! Kinds of policies, flags, and their bases.

use super::*;
use crate::plan::{NetworkScope, SandboxPlan};

fn plan(
    permissions: &str,
    flags: &str,
    purpose: PolicyPurpose,
) -> Result<SandboxPlan, PolicyError> {
    let text =
        format!(r#"{{"permissions":{permissions},"windowsSandboxLevel":"disabled"{flags}}}"#);
    let context = ResolveContext {
        purpose,
        ..context()
    };
    let sandbox = serde_json::from_str(&text).unwrap();
    resolve(&sandbox, &context, &MemoryTree::of("/ws/"))
}

const FULL_WRITE: &str = r#"{"type":"managed","network":"restricted","file_system":{"type":"restricted",
    "entries":[{"path":{"type":"special","value":{"kind":"root"}},"access":"write"}]}}"#;
const READ_ONLY: &str = r#"{"type":"managed","network":"enabled","file_system":{"type":"restricted",
    "entries":[{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}]}}"#;

#[test]
fn network_scope_follows_the_kind_of_policy() {
    for (permissions, network) in [
        (r#"{"type":"disabled"}"#, NetworkScope::Host),
        (
            r#"{"type":"external","network":"enabled"}"#,
            NetworkScope::Host,
        ),
        (
            r#"{"type":"external","network":"restricted"}"#,
            NetworkScope::None,
        ),
        (
            r#"{"type":"managed","file_system":{"type":"unrestricted"},"network":"enabled"}"#,
            NetworkScope::Host,
        ),
        (
            r#"{"type":"managed","file_system":{"type":"unrestricted"},"network":"restricted"}"#,
            NetworkScope::None,
        ),
        (FULL_WRITE, NetworkScope::None),
    ] {
        let files = FileAccess::All;
        let result = plan(permissions, "", PolicyPurpose::Process);
        assert_eq!(result, Ok(SandboxPlan { files, network }), "{permissions}");
        let result = plan(permissions, "", PolicyPurpose::Files).unwrap();
        assert_eq!(result.network, NetworkScope::None, "{permissions}");
    }
    let result = plan(READ_ONLY, "", PolicyPurpose::Process).unwrap();
    assert_eq!(result.network, NetworkScope::Host);
    assert_ne!(result.files, FileAccess::All);
}

#[test]
fn legacy_landlock_is_refused_for_restricted_files() {
    let flag = r#","useLegacyLandlock":true"#;
    let result = plan(READ_ONLY, flag, PolicyPurpose::Process);
    assert_eq!(result, Err(PolicyError::LegacyLandlock));
    assert!(plan(FULL_WRITE, flag, PolicyPurpose::Process).is_ok());
    assert!(plan(r#"{"type":"disabled"}"#, flag, PolicyPurpose::Process).is_ok());
}

#[test]
fn windows_only_level_is_refused() {
    let text = r#"{"permissions":{"type":"disabled"},"windowsSandboxLevel":"mxc"}"#;
    let sandbox = serde_json::from_str(text).unwrap();
    let result = resolve(&sandbox, &context(), &MemoryTree::of(""));
    assert_eq!(result, Err(PolicyError::WindowsOnly));
}

#[test]
fn file_operations_may_read_the_minimal_paths() {
    let context = ResolveContext {
        purpose: PolicyPurpose::Files,
        ..context()
    };
    let tree = "/ws/\n/usr/\n/etc/\n/lib -> usr/lib\n/usr/lib/";
    let lines = |entries: &str| describe(&view(tree, &sandbox(entries), &context).unwrap());
    assert_eq!(
        lines("read /ws\ndeny /etc"),
        ["hide", "read /usr", "read /ws", "link /lib -> usr/lib"]
    );
    assert_eq!(lines("read :root\ndeny /ws"), ["read", "hide /ws"]);
}

#[test]
fn policy_context_overrides_top_level_members() {
    let tree = "/ws/x.pem\n/in/x.pem\n/root/";
    let entries = "read :root\nwrite :roots\ndeny *.pem";
    let mut policy = sandbox(entries);
    let lines = |policy: &SandboxPolicy| {
        let lines = describe(&view(tree, policy, &context()).unwrap());
        let kept = lines.into_iter().filter(|line| !line.starts_with("no "));
        kept.collect::<Vec<_>>()
    };
    assert_eq!(lines(&policy), ["read", "write /ws", "hide /ws/x.pem"]);
    let inner = r#"{"cwd":"file:///in","workspaceRoots":["file:///root"]}"#;
    policy.policy_context = serde_json::from_str(inner).unwrap();
    assert_eq!(lines(&policy), ["read", "write /root", "hide /in/x.pem"]);
    // An empty list overrides the roots; the directory is overridden only by another one.
    policy.policy_context = serde_json::from_str("{}").unwrap();
    assert_eq!(lines(&policy), ["read", "hide /ws/x.pem"]);
    // Without any base, the command's own directory applies, and there are no roots.
    policy.policy_context = None;
    policy.cwd = None;
    policy.workspace_roots = Vec::new();
    assert_eq!(lines(&policy), ["read", "hide /ws/x.pem"]);
}

#[test]
fn file_operations_require_cwd_for_dynamic_entries() {
    let context = ResolveContext {
        purpose: PolicyPurpose::Files,
        ..context()
    };
    for (entries, entry) in [
        ("read :root\ndeny *.pem", Some(1)),
        ("read :roots", Some(0)),
        (
            "read :root\nread /ws\ndeny glob:codex-project-roots://*.pem",
            Some(2),
        ),
        ("read :root\ndeny glob:/ws/*.pem", None),
        ("read /ws\nread :tmp", None),
    ] {
        let mut policy = sandbox(entries);
        policy.cwd = None;
        let result = view("/ws/", &policy, &context).map(drop);
        let expected = entry.map_or(Ok(()), |entry| Err(PolicyError::CwdRequired { entry }));
        assert_eq!(result, expected, "{entries}");
        if let Err(error) = result {
            assert!(
                error
                    .to_string()
                    .contains("dynamic permissions requires cwd")
            );
        }
        policy.policy_context = serde_json::from_str(r#"{"cwd":"file:///ws"}"#).unwrap();
        assert!(view("/ws/", &policy, &context).is_ok());
    }
}

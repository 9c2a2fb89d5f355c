//! Kinds of policies, flags, and what they relate to.

use super::*;
use crate::plan::{Network, Plan};

fn plan(permissions: &str, flags: &str, purpose: Purpose) -> Result<Plan, PolicyError> {
    let text =
        format!(r#"{{"permissions":{permissions},"windowsSandboxLevel":"disabled"{flags}}}"#);
    let context = Context {
        purpose,
        ..context()
    };
    let sandbox = serde_json::from_str(&text).unwrap();
    resolve(&sandbox, &context, &Tree::of("/ws/"))
}

const FULL_WRITE: &str = r#"{"type":"managed","network":"restricted","file_system":{"type":"restricted",
    "entries":[{"path":{"type":"special","value":{"kind":"root"}},"access":"write"}]}}"#;
const READ_ONLY: &str = r#"{"type":"managed","network":"enabled","file_system":{"type":"restricted",
    "entries":[{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}]}}"#;

#[test]
fn kinds_of_policies_say_which_network_is_there() {
    for (permissions, network) in [
        (r#"{"type":"disabled"}"#, Network::Host),
        (r#"{"type":"external","network":"enabled"}"#, Network::Host),
        (
            r#"{"type":"external","network":"restricted"}"#,
            Network::None,
        ),
        (
            r#"{"type":"managed","file_system":{"type":"unrestricted"},"network":"enabled"}"#,
            Network::Host,
        ),
        (
            r#"{"type":"managed","file_system":{"type":"unrestricted"},"network":"restricted"}"#,
            Network::None,
        ),
        (FULL_WRITE, Network::None),
    ] {
        let files = Files::All;
        let found = plan(permissions, "", Purpose::Process);
        assert_eq!(found, Ok(Plan { files, network }), "{permissions}");
        let found = plan(permissions, "", Purpose::Files).unwrap();
        assert_eq!(found.network, Network::None, "{permissions}");
    }
    let found = plan(READ_ONLY, "", Purpose::Process).unwrap();
    assert_eq!(found.network, Network::Host);
    assert_ne!(found.files, Files::All);
}

#[test]
fn landlock_alone_is_refused_where_it_would_not_do() {
    let flag = r#","useLegacyLandlock":true"#;
    let found = plan(READ_ONLY, flag, Purpose::Process);
    assert_eq!(found, Err(PolicyError::LegacyLandlock));
    assert!(plan(FULL_WRITE, flag, Purpose::Process).is_ok());
    assert!(plan(r#"{"type":"disabled"}"#, flag, Purpose::Process).is_ok());
}

#[test]
fn what_only_windows_has_is_refused() {
    let text = r#"{"permissions":{"type":"disabled"},"windowsSandboxLevel":"mxc"}"#;
    let sandbox = serde_json::from_str(text).unwrap();
    let found = resolve(&sandbox, &context(), &Tree::of(""));
    assert_eq!(found, Err(PolicyError::WindowsOnly));
}

#[test]
fn operations_on_files_read_what_every_program_reads() {
    let context = Context {
        purpose: Purpose::Files,
        ..context()
    };
    let tree = "/ws/\n/usr/\n/etc/\n/lib -> usr/lib\n/usr/lib/";
    let lines = |entries: &str| shown(&view(tree, &sandbox(entries), &context).unwrap());
    assert_eq!(
        lines("read /ws\ndeny /etc"),
        ["hide", "read /usr", "read /ws", "link /lib -> usr/lib"]
    );
    assert_eq!(lines("read :root\ndeny /ws"), ["read", "hide /ws"]);
}

#[test]
fn the_inner_context_overrides_the_flat_members() {
    let tree = "/ws/x.pem\n/in/x.pem\n/root/";
    let entries = "read :root\nwrite :roots\ndeny *.pem";
    let mut policy = sandbox(entries);
    let lines = |policy: &Sandbox| {
        let lines = shown(&view(tree, policy, &context()).unwrap());
        let kept = lines.into_iter().filter(|line| !line.starts_with("no "));
        kept.collect::<Vec<_>>()
    };
    assert_eq!(lines(&policy), ["read", "write /ws", "hide /ws/x.pem"]);
    let inner = r#"{"cwd":"file:///in","workspaceRoots":["file:///root"]}"#;
    policy.policy_context = serde_json::from_str(inner).unwrap();
    assert_eq!(lines(&policy), ["read", "write /root", "hide /in/x.pem"]);
    // Roots are overridden even by none at all; the directory only by another.
    policy.policy_context = serde_json::from_str("{}").unwrap();
    assert_eq!(lines(&policy), ["read", "hide /ws/x.pem"]);
    // Without any, a command's own directory counts, and there are no roots.
    policy.policy_context = None;
    policy.cwd = None;
    policy.workspace_roots = Vec::new();
    assert_eq!(lines(&policy), ["read", "hide /ws/x.pem"]);
}

#[test]
fn operations_on_files_need_the_directory_that_an_entry_depends_on() {
    let context = Context {
        purpose: Purpose::Files,
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
        let found = view("/ws/", &policy, &context).map(drop);
        let expected = entry.map_or(Ok(()), |entry| Err(PolicyError::CwdRequired { entry }));
        assert_eq!(found, expected, "{entries}");
        if let Err(error) = found {
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

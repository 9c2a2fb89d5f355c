use std::os::unix::ffi::OsStrExt;

use super::*;
use crate::plan::{ForbiddenName, ViewLayer};

fn layer(path: &str, kind: PathKind, access: PathAccess) -> ViewLayer {
    ViewLayer {
        path: path.into(),
        kind,
        access,
    }
}

/// Returns the rules of a view, without those of every profile.
fn rules(view: FileView) -> String {
    let plan = SandboxPlan {
        files: FileAccess::View(view),
        network: NetworkScope::None,
    };
    let text = profile(&plan).unwrap();
    let start = format!("(version 1)\n(deny default)\n{BASE_RULES}");
    let rules = text.strip_prefix(&start).unwrap();
    rules.strip_suffix(DEVICE_RULES).unwrap().to_owned()
}

#[test]
fn workspace_keeps_its_carve_outs() {
    let view = FileView {
        base: PathAccess::Read,
        layers: vec![
            layer("/tmp/file", PathKind::File, PathAccess::Write),
            layer("/Users/dev/ws", PathKind::Directory, PathAccess::Write),
            layer("/Users/dev/ws/.git", PathKind::Directory, PathAccess::Read),
            layer("/Users/dev/ws/a/.env", PathKind::File, PathAccess::Hidden),
        ],
        forbidden: vec![ForbiddenName {
            directory: "/Users/dev/ws".into(),
            name: ".codex".into(),
        }],
        links: Vec::new(),
    };
    let expected = r#"(allow file-read* file-map-executable process-exec*)
(allow file-read* file-map-executable process-exec* file-write* (literal "/tmp/file"))
(allow file-read* file-map-executable process-exec* file-write* (subpath "/Users/dev/ws"))
(allow file-read* file-map-executable process-exec* (subpath "/Users/dev/ws/.git"))
(deny file-write* (subpath "/Users/dev/ws/.git"))
(deny file-read* file-map-executable process-exec* file-write* (literal "/Users/dev/ws/a/.env"))
(deny file-write* (literal "/Users/dev/ws/.codex") (subpath "/Users/dev/ws/.codex"))
(deny file-write-unlink (literal "/Users/dev/ws"))
(deny file-write-unlink (literal "/Users/dev/ws/a"))
"#;
    assert_eq!(rules(view), expected);
}

#[test]
fn hidden_base_allows_only_listed_paths() {
    let view = FileView {
        base: PathAccess::Hidden,
        layers: vec![
            layer("/private/etc", PathKind::Directory, PathAccess::Read),
            layer("/Users/dev/ws", PathKind::Directory, PathAccess::Write),
        ],
        forbidden: Vec::new(),
        links: vec![("/etc".into(), "private/etc".into())],
    };
    let expected = r#"(allow file-read* file-map-executable process-exec*
  (literal "/")
  (subpath "/System/Library")
  (subpath "/System/Volumes/Preboot/Cryptexes")
  (subpath "/usr/lib")
  (subpath "/private/var/db/dyld"))
(allow file-read-metadata (literal "/"))
(allow file-read-metadata (literal "/Users"))
(allow file-read-metadata (literal "/Users/dev"))
(allow file-read-metadata (literal "/private"))
(allow file-read* (literal "/etc"))
(allow file-read* file-map-executable process-exec* (subpath "/private/etc"))
(deny file-write* (subpath "/private/etc"))
(allow file-read* file-map-executable process-exec* file-write* (subpath "/Users/dev/ws"))
"#;
    assert_eq!(rules(view), expected);
}

#[test]
fn network_is_allowed_or_denied() {
    let view = FileView {
        base: PathAccess::Read,
        layers: Vec::new(),
        forbidden: Vec::new(),
        links: Vec::new(),
    };
    let text = |files: &FileAccess, network| {
        let files = files.clone();
        profile(&SandboxPlan { files, network }).unwrap()
    };
    assert_eq!(
        text(&FileAccess::All, NetworkScope::Host),
        "(version 1)\n(allow default)\n"
    );
    assert_eq!(
        text(&FileAccess::All, NetworkScope::None),
        "(version 1)\n(allow default)\n(deny network*)\n"
    );
    let view = FileAccess::View(view);
    assert!(text(&view, NetworkScope::Host).ends_with(NETWORK_RULES));
    assert!(!text(&view, NetworkScope::None).contains("network"));
}

#[test]
fn parentheses_are_balanced() {
    for text in [BASE_RULES, DEVICE_RULES, NETWORK_RULES] {
        let count = |character: char| text.matches(character).count();
        assert_eq!(count('('), count(')'), "{text}");
    }
}

#[test]
fn paths_are_quoted_and_cannot_become_rules() {
    let hostile = Path::new("/a\") (allow default) (literal \"\\");
    let expected = r#""/a\") (allow default) (literal \"\\""#;
    assert_eq!(quote(hostile).unwrap(), expected);
    let no_text = Path::new(OsStr::from_bytes(b"/a\xff"));
    assert_eq!(
        quote(no_text),
        Err(SeatbeltError::NotText(no_text.to_owned()))
    );
}

#[test]
fn command_line_starts_with_sandbox_exec_and_the_profile() {
    assert_eq!(
        command("(version 1)", ["/bin/ls", "-l"]),
        [
            "/usr/bin/sandbox-exec",
            "-p",
            "(version 1)",
            "--",
            "/bin/ls",
            "-l"
        ]
    );
}

use std::os::unix::ffi::OsStrExt;

use super::*;
use crate::plan::{Forbidden, Layer};

fn layer(path: &str, kind: Kind, access: Access) -> Layer {
    Layer {
        path: path.into(),
        kind,
        access,
    }
}

/// Returns the rules of a view, without what every profile has.
fn rules(view: View) -> String {
    let plan = Plan {
        files: Files::View(view),
        network: Network::None,
    };
    let text = profile(&plan).unwrap();
    let start = format!("(version 1)\n(deny default)\n{BASICS}");
    let rest = text.strip_prefix(&start).unwrap();
    rest.strip_suffix(DEVICES).unwrap().to_owned()
}

#[test]
fn a_workspace_keeps_its_carve_outs() {
    let view = View {
        base: Access::Read,
        layers: vec![
            layer("/tmp/file", Kind::File, Access::Write),
            layer("/Users/dev/ws", Kind::Directory, Access::Write),
            layer("/Users/dev/ws/.git", Kind::Directory, Access::Read),
            layer("/Users/dev/ws/a/.env", Kind::File, Access::Hidden),
        ],
        forbidden: vec![Forbidden {
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
fn what_is_not_listed_is_not_there() {
    let view = View {
        base: Access::Hidden,
        layers: vec![
            layer("/private/etc", Kind::Directory, Access::Read),
            layer("/Users/dev/ws", Kind::Directory, Access::Write),
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
fn the_network_is_the_hosts_or_none() {
    let view = View {
        base: Access::Read,
        layers: Vec::new(),
        forbidden: Vec::new(),
        links: Vec::new(),
    };
    let text = |files: &Files, network| {
        let files = files.clone();
        profile(&Plan { files, network }).unwrap()
    };
    assert_eq!(
        text(&Files::All, Network::Host),
        "(version 1)\n(allow default)\n"
    );
    assert_eq!(
        text(&Files::All, Network::None),
        "(version 1)\n(allow default)\n(deny network*)\n"
    );
    let view = Files::View(view);
    assert!(text(&view, Network::Host).ends_with(NETWORK));
    assert!(!text(&view, Network::None).contains("network"));
}

#[test]
fn parentheses_match() {
    for text in [BASICS, DEVICES, NETWORK] {
        let count = |letter: char| text.matches(letter).count();
        assert_eq!(count('('), count(')'), "{text}");
    }
}

#[test]
fn paths_are_quoted_and_cannot_become_rules() {
    let hostile = Path::new("/a\") (allow default) (literal \"\\");
    let expected = r#""/a\") (allow default) (literal \"\\""#;
    assert_eq!(quoted(hostile).unwrap(), expected);
    let no_text = Path::new(OsStr::from_bytes(b"/a\xff"));
    assert_eq!(
        quoted(no_text),
        Err(ProfileError::NotText(no_text.to_owned()))
    );
}

#[test]
fn a_command_runs_behind_its_profile() {
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

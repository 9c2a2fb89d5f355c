use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, thread};

use super::{after, authenticator, bearer, epoch, token};
use crate::{
    principal::{Environments, Role, Roles},
    tokens::{EditError, NewToken, ReadError, TokenId, create, file, list, revoke},
};

#[test]
fn what_was_created_is_listed_and_lets_its_holder_in() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/tokens.toml");
    let new = NewToken {
        roles: Roles::new([Role::Admin, Role::Harness]),
        environments: Environments::new(vec!["dev-*".to_owned()]).unwrap(),
        expires_at: Some(after(90)),
        ..token("alice")
    };
    let (entry, secret) = create(&path, new, epoch()).unwrap();
    let listed = list(&path).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].id, entry.id);
    assert_eq!(
        (listed[0].created_at, listed[0].expires_at),
        (epoch(), Some(after(90)))
    );

    let principal = authenticator(&path)
        .authenticate(&bearer(secret.expose()), after(89))
        .unwrap();
    assert_eq!(principal.name.as_str(), "alice");
    assert_eq!(principal.roles, Roles::new([Role::Harness, Role::Admin]));
    assert!(principal.environments.name(&"dev-1".parse().unwrap()));
}

#[test]
fn the_file_holds_no_token_and_only_its_owner_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let (_, secret) = create(&path, token("alice"), epoch()).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains(secret.expose()) && text.contains("sha256"));
    assert!(!format!("{secret:?}").contains(secret.expose()));
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[test]
fn a_revoked_token_is_gone_and_the_others_stay() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let (alice, _) = create(&path, token("alice"), epoch()).unwrap();
    let (bob, _) = create(&path, token("bob"), epoch()).unwrap();
    assert_eq!(revoke(&path, &alice.id).unwrap().principal, alice.principal);
    assert!(matches!(revoke(&path, &alice.id), Err(EditError::Unknown)));
    let left = list(&path).unwrap();
    assert_eq!(
        left.iter().map(|entry| &entry.id).collect::<Vec<_>>(),
        [&bob.id]
    );
}

#[test]
fn writers_take_turns_and_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    thread::scope(|scope| {
        for n in 0..8 {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..4 {
                    create(path, token(&format!("p{n}")), epoch()).unwrap();
                }
            });
        }
    });
    assert_eq!(list(&path).unwrap().len(), 32);
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "the file and its lock: {left:?}");
}

#[test]
fn a_link_is_followed_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (real, link) = (directory.path().join("real"), directory.path().join("link"));
    create(&real, token("alice"), epoch()).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    create(&link, token("bob"), epoch()).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(list(&real).unwrap().len(), 2);
}

#[test]
fn a_token_that_is_worth_nothing_is_not_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let expired = NewToken {
        expires_at: Some(epoch()),
        ..token("alice")
    };
    assert!(matches!(
        create(&path, expired, epoch()),
        Err(EditError::Expired)
    ));
    let idle = NewToken {
        roles: Roles::new([]),
        ..token("alice")
    };
    assert!(matches!(
        create(&path, idle, epoch()),
        Err(EditError::NoRoles)
    ));
    assert!(!path.exists());
}

#[test]
fn a_broken_file_is_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    fs::write(&path, "[[token]]\nid = 7\n").unwrap();
    assert!(matches!(
        create(&path, token("a"), epoch()),
        Err(EditError::Read(_))
    ));
    let id = TokenId::new("x").unwrap();
    assert!(matches!(revoke(&path, &id), Err(EditError::Read(_))));
    assert_eq!(fs::read_to_string(&path).unwrap(), "[[token]]\nid = 7\n");
}

#[test]
fn broken_files_are_named_by_line_or_token_and_never_quoted() {
    const SHA: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let good = format!(
        "[[token]]\nid = \"a\"\nprincipal = \"p\"\nsha256 = \"{SHA}\"\nroles = [\"admin\"]\n\
         created_at = 2026-01-01T00:00:00Z\n"
    );
    let path = Path::new("tokens.toml");
    assert_eq!(file::parse(&good, path).unwrap().len(), 1);
    assert!(file::parse("", path).unwrap().is_empty());

    let syntax = [
        (good.replace("\"admin\"", "\"root\""), 5),
        (good.replace("principal = \"p\"", "principal = \"a b\""), 3),
        (good.replace("roles", "role"), 5),
        (format!("{good}secret = \"exh_abc\"\n"), 7),
        ("[token]".to_owned(), 1),
        ("x".to_owned(), 1),
    ];
    for (text, expected) in syntax {
        let error = file::parse(&text, path).unwrap_err();
        assert!(!error.to_string().contains("exh_abc"), "{error}");
        let ReadError::Syntax { line, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(line, expected, "{text}");
    }
    let entries = [
        good.replace("\"a\"", "\"a b\""),
        good.replace(SHA, &SHA[1..]),
        good.replace(SHA, &SHA.replace('b', "x")),
        good.replace("[\"admin\"]", "[]"),
        good.replace("T00:00:00Z", ""),
        good.replace("00Z", "00"),
        format!("{good}environments = [\"[\"]\n"),
    ];
    for text in entries {
        let error = file::parse(&text, path).unwrap_err();
        assert!(
            matches!(error, ReadError::Entry { index: 1, .. }),
            "{error}"
        );
    }
    let twice = file::parse(&format!("{good}{good}"), path).unwrap_err();
    assert!(
        matches!(twice, ReadError::Entry { index: 2, .. }),
        "{twice}"
    );
}

//! Tests of routes and of typed paths.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

use exec_local::filesystem::LocalFileSystem;
use exec_settings::{
    environments::{EnvEndpoint, UrlEndpoint},
    local_socket::LocalSocket,
    settings_source::VariableLookup,
};
use exec_wire::environment::EnvironmentInfo;

use crate::command::{
    connect::{
        EnvArgs,
        route::{self, EnvRoute, RouteKind},
    },
    failure::FailureKind,
};

fn info(cwd: Option<&str>, home: Option<&str>) -> EnvironmentInfo {
    let mut info = serde_json::json!({ "shell": { "name": "sh", "path": "/bin/sh" } });
    info["cwd"] = cwd.into();
    info["userHomeDir"] = home.into();
    serde_json::from_value(info).unwrap()
}

async fn read(
    typed: &str,
    base: Option<&str>,
    info: &EnvironmentInfo,
) -> Result<String, FailureKind> {
    let (base, files) = (base.map(PathBuf::from), LocalFileSystem::default());
    let read = route::read(OsStr::new(typed), base, info, &files).await;
    read.map(|path| path.to_string())
        .map_err(|failure| failure.kind)
}

#[tokio::test]
async fn paths_resolve_against_base_server_directory_or_home() {
    let remote = info(Some("file:///srv/app"), Some("file:///home/me"));
    for (typed, base, path) in [
        ("a/b", None, "file:///srv/app/a/b"),
        ("a/b", Some("/srv"), "file:///srv/a/b"),
        (".", Some("/srv"), "file:///srv"),
        ("/etc", Some("/srv"), "file:///etc"),
        ("~", Some("/srv"), "file:///home/me"),
        ("~/x y", None, "file:///home/me/x%20y"),
        ("~other", None, "file:///srv/app/~other"),
        ("file:///a%20b", Some("/srv"), "file:///a%20b"),
        ("100%", None, "file:///srv/app/100%25"),
        ("a?b#c", None, "file:///srv/app/a%3Fb%23c"),
    ] {
        assert_eq!(
            read(typed, base, &remote).await.as_deref(),
            Ok(path),
            "{typed}"
        );
    }
    assert_eq!(
        read("x", None, &info(None, None)).await.as_deref(),
        Ok("file:///x")
    );
    for typed in ["", "~/x"] {
        let refused = read(typed, None, &info(None, None)).await;
        assert_eq!(refused, Err(FailureKind::Usage), "{typed}");
    }
}

#[tokio::test]
async fn links_before_dot_dot_are_resolved() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    std::fs::create_dir_all(root.join("real/deep")).unwrap();
    std::os::unix::fs::symlink("real/deep", root.join("lk")).unwrap();
    let (info, base) = (info(None, None), root.to_str());
    let at = |name: &str| Ok(format!("file://{}{name}", root.display()));
    for (typed, path) in [
        ("lk/../x", "/real/x"),
        ("lk/.././x", "/real/x"),
        ("lk/../../x", "/x"),
        ("lk/../deep/../x", "/real/x"),
        ("real/../x", "/x"),
        ("lk/x", "/lk/x"),
    ] {
        assert_eq!(read(typed, base, &info).await, at(path), "{typed}");
    }
    assert_eq!(read("/..", base, &info).await.as_deref(), Ok("file:///"));
    let missing = read("none/../x", base, &info).await;
    assert_eq!(missing, Err(FailureKind::NotFound));
}

#[tokio::test]
async fn non_utf8_path_bytes_are_kept() {
    let odd = OsStr::from_bytes(b"a\xff");
    let (base, files) = (Some(PathBuf::from("/srv")), LocalFileSystem::default());
    let parsed = route::read(odd, base, &info(None, None), &files).await;
    let path = parsed.unwrap();
    let native = path.to_native().unwrap();
    assert_eq!(native.as_os_str().as_bytes(), b"/srv/a\xff");
    // Hosts of the other kind use text and join it differently.
    let windows = info(Some("file:///C:/srv"), Some("file:///C:/Users/me"));
    let joined = read("a\\b", None, &windows).await;
    assert_eq!(joined.as_deref(), Ok("file:///C:/srv/a/b"));
    assert!(route::read(odd, None, &windows, &files).await.is_err());
}

fn variables<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
    |name| {
        let found = set.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| OsString::from(value))
    }
}

#[test]
fn socket_is_in_a_directory_of_the_account() {
    let uid = rustix::process::geteuid().as_raw();
    let shared = format!("/run/user/{uid}/exec-server/server.sock");
    let home = "/h/.local/state/exec-server/run/server.sock";
    let runtime = tempfile::tempdir().unwrap();
    let runtime = runtime.path().to_str().unwrap();
    let own = format!("{runtime}/exec-server/server.sock");
    for (set, path) in [
        (&[][..], shared.as_str()),
        (&[("XDG_RUNTIME_DIR", runtime)], &own),
        (&[("XDG_RUNTIME_DIR", "/nonexistent")], &shared),
        (&[("XDG_RUNTIME_DIR", "run")], &shared),
        (&[("EXEC_SERVER_SOCKET", "/x/y.sock")], "/x/y.sock"),
        (&[("EXEC_SERVER_SOCKET", "")], &shared),
        (&[("HOME", "/h")], home),
        (&[("HOME", "/h"), ("XDG_RUNTIME_DIR", "/none")], home),
        (
            &[("HOME", "/h"), ("XDG_STATE_HOME", "/s")],
            "/s/exec-server/run/server.sock",
        ),
        (&[("HOME", "/h"), ("XDG_STATE_HOME", "s")], home),
    ] {
        let found = LocalSocket::find(&variables(set));
        assert_eq!(found.path(), PathBuf::from(path), "{set:?}");
    }
}

fn route(env: Option<&str>, lookup: VariableLookup<'_>) -> Result<EnvRoute, FailureKind> {
    let env_args = EnvArgs {
        env: env.map(str::to_owned),
        ..EnvArgs::default()
    };
    EnvRoute::find(&env_args, lookup).map_err(|failure| failure.kind)
}

#[test]
fn url_name_and_default_resolve_to_routes() {
    let set = [("EXEC_SERVER_TOKEN", "t0ken")];
    let typed = route(Some("wss://h:1/secret"), &variables(&set)).unwrap();
    assert_eq!(typed.name, "wss://h:1");
    let RouteKind::Typed(EnvEndpoint::Url(UrlEndpoint {
        auth_bearer_token: Some(_),
        url,
        ..
    })) = typed.route_kind
    else {
        panic!("{:?}", typed.route_kind);
    };
    assert_eq!(url, "wss://h:1/secret");
    for env in [None, Some(""), Some("local")] {
        let local = route(env, &variables(&[])).unwrap();
        assert!(matches!(local.route_kind, RouteKind::Local(_)), "{env:?}");
    }
    // Naming `local` overrides a setting that excludes this machine.
    let nowhere = [("CODEX_EXEC_SERVER_URL", "none")];
    assert!(route(Some("local"), &variables(&nowhere)).is_ok());
    for (env, kind) in [
        (None, FailureKind::UnknownEnvironment),
        (Some("box"), FailureKind::UnknownEnvironment),
        (Some("ftp://h"), FailureKind::Usage),
    ] {
        let refused = route(env, &variables(&nowhere));
        assert_eq!(refused.map(|route| route.name), Err(kind), "{env:?}");
    }
    let remote = [("CODEX_EXEC_SERVER_URL", "ws://127.0.0.1:1")];
    let from_variable = route(None, &variables(&remote)).unwrap();
    assert!(
        matches!(from_variable.route_kind, RouteKind::Named(_)),
        "{:?}",
        from_variable.route_kind
    );
}

#[test]
fn token_applies_to_the_url_variable() {
    let mut set = vec![("CODEX_EXEC_SERVER_URL", "ws://127.0.0.1:1")];
    let has_token = |set: &[(&str, &str)]| match route(None, &variables(set)).unwrap().route_kind {
        RouteKind::Named(EnvEndpoint::Url(url)) => url.auth_bearer_token.is_some(),
        route_kind @ (RouteKind::Local(_) | RouteKind::Named(_) | RouteKind::Typed(_)) => {
            panic!("{route_kind:?}")
        }
    };
    assert!(!has_token(&set));
    set.push(("EXEC_SERVER_TOKEN", "t0ken"));
    assert!(has_token(&set));
}

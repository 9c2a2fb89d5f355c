use super::*;

const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/bash
# a comment
broken:x
zoe:x:1000:1000:Zoe,,,:/home/zoe:/usr/bin/zsh
fay:x:1001:1001::/home/fay:/usr/bin/fish
rel:x:1002:1002::home/rel:bash
";

#[test]
fn login_shell_is_taken_from_the_account_if_supported_and_installed() {
    let cases: [(&str, u32, Names<'_>, Pair<'_>); 8] = [
        (
            "zsh account",
            1000,
            &["/usr/bin/zsh", "/bin/bash"],
            ("zsh", "/usr/bin/zsh"),
        ),
        (
            "its shell is gone",
            1000,
            &["/usr/bin/bash"],
            ("bash", "/usr/bin/bash"),
        ),
        (
            "unknown kind",
            1001,
            &["/usr/bin/fish", "/bin/bash"],
            ("bash", "/bin/bash"),
        ),
        (
            "bash before zsh",
            1001,
            &["/bin/zsh", "/usr/local/bin/bash"],
            ("bash", "/usr/local/bin/bash"),
        ),
        (
            "zsh if no bash",
            1001,
            &["/opt/bin/zsh"],
            ("zsh", "/opt/bin/zsh"),
        ),
        (
            "search path first",
            4242,
            &["/bin/bash", "/opt/bin/bash"],
            ("bash", "/opt/bin/bash"),
        ),
        (
            "relative path is not trusted",
            1002,
            &["bash", "/bin/bash"],
            ("bash", "/bin/bash"),
        ),
        ("nothing", 4242, &[], ("sh", "/bin/sh")),
    ];
    for (case, uid, installed, (name, path)) in cases {
        let host = host(&[("PATH", "bin::/opt/bin")], uid, installed);
        assert_eq!(
            host.shell,
            ShellProgram {
                name: name.to_owned(),
                path: path.to_owned()
            },
            "{case}"
        );
    }
}

#[test]
fn home_is_the_absolute_variable_or_from_the_account() {
    let cases: [(&[Pair<'_>], u32, Option<&str>); 5] = [
        (&[("HOME", "/elsewhere")], 1000, Some("/elsewhere")),
        (&[("HOME", "relative")], 1000, Some("/home/zoe")),
        (&[], 0, Some("/root")),
        (&[], 1002, None),
        (&[], 4242, None),
    ];
    for (env, uid, expected) in cases {
        assert_eq!(
            host(env, uid, &[]).home.as_deref(),
            expected.map(Path::new),
            "{env:?} {uid}"
        );
    }
}

#[test]
fn temporary_directories_follow_tmpdir() {
    let cases: [(&[Pair<'_>], Names<'_>, &str); 4] = [
        (&[("TMPDIR", "/scratch")], &["/scratch"], "/scratch"),
        (&[("TMPDIR", "rel")], &["/srv/work/rel"], "/srv/work/rel"),
        (&[("TMPDIR", "")], &[], "/tmp"),
        (&[], &[], "/tmp"),
    ];
    for (env, directories, temp_dir) in cases {
        let info = host(env, 0, &[]).environment_info("1.2.3", ServerCapabilities::default());
        let expected = directories
            .iter()
            .map(|path| uri(Path::new(path)).unwrap())
            .collect();
        assert_eq!(info.temporary_directories, Some(expected), "{env:?}");
        assert_eq!(info.temp_dir, uri(Path::new(temp_dir)), "{env:?}");
    }
}

#[test]
fn environment_info_has_version_capabilities_and_platform() {
    let capabilities = ServerCapabilities {
        shell_snapshot_v2: true,
        ..ServerCapabilities::default()
    };
    let info = host(&[], 1000, &["/usr/bin/zsh"]).environment_info("1.2.3", capabilities);
    assert_eq!(
        info,
        EnvironmentInfo {
            shell: ShellProgram {
                name: "zsh".to_owned(),
                path: "/usr/bin/zsh".to_owned()
            },
            cwd: uri(Path::new("/srv/work")),
            executor_version: "1.2.3".to_owned(),
            provider_id: None,
            user_home_dir: uri(Path::new("/home/zoe")),
            platform_os: Some(consts::OS.to_owned()),
            prepend_path_dirs: Vec::new(),
            temporary_directories: Some(Vec::new()),
            temp_dir: uri(Path::new("/tmp")),
            capabilities,
        }
    );
    assert!(info.cwd.is_some() && info.user_home_dir.is_some());
}

#[test]
fn debug_output_of_facts_hides_the_environment() {
    let env = BTreeMap::from([("API_KEY".into(), "hunter2".into())]);
    let facts = HostFacts {
        env: &env,
        passwd: PASSWD,
        uid: 0,
        cwd: Path::new("/"),
        exists: &|_| false,
    };
    assert!(!format!("{facts:?}").contains("hunter2"));
}

type Pair<'a> = (&'a str, &'a str);
type Names<'a> = &'a [&'a str];

fn host(env: &[Pair<'_>], uid: u32, installed: Names<'_>) -> HostDescription {
    let env = env
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    HostDescription::new(&HostFacts {
        env: &env,
        passwd: PASSWD,
        uid,
        cwd: Path::new("/srv/work"),
        exists: &|path| installed.iter().any(|program| Path::new(program) == path),
    })
}

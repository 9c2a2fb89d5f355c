//! Tests of the unit's text.

use std::{ffi::OsString, process::Command};

use super::*;

/// Returns the unit of a program, with paths that need quotes.
fn unit_of(program: &Path) -> String {
    let joined = JoinedHub {
        hub: BaseUrl::parse("https://hub.example").unwrap(),
        environment: RegistryEnvironmentId::new("box-7").unwrap(),
        token_file: "/home/a b/100%/$x\"y/token".into(),
    };
    let lookup = |name: &str| (name == "SSL_CERT_FILE").then(|| OsString::from("/c a.pem"));
    unit_text(program, &joined, &lookup)
}

#[test]
fn unit_quotes_what_systemd_would_expand() {
    let text = unit_of(Path::new("/opt/exec-server"));
    assert!(text.starts_with(MARK), "{text}");
    for line in [
        r#"ExecStart="/opt/exec-server" "--remote" "https://hub.example" "--environment-id" "box-7" "--remote-token-file" "/home/a b/100%%/$$x\"y/token""#,
        r#"Environment="SSL_CERT_FILE=/c a.pem""#,
        "WantedBy=default.target",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}\n{text}");
    }
}

#[test]
fn systemd_analyze_accepts_the_unit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("exec-server-box-7.service");
    // systemd-analyze requires the program to exist.
    let unit = unit_of(&std::env::current_exe().unwrap());
    let verified = |text: &str| {
        fs::write(&path, text).unwrap();
        let mut analyze = Command::new("systemd-analyze");
        analyze.args(["verify", "--user"]).arg(&path);
        // It needs a runtime directory, but no running systemd.
        analyze.env("XDG_RUNTIME_DIR", directory.path());
        match analyze.output() {
            Ok(output) => Some(output),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => panic!("{error}"),
        }
    };
    // Hosts without systemd skip the test.
    let Some(output) = verified(&unit) else {
        return;
    };
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    // It succeeds for most mistakes, but reports them.
    let output = verified(&unit.replace("KillMode=", "KillMod=")).unwrap();
    assert!(!output.stderr.is_empty(), "{output:?}");
}

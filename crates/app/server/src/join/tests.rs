//! Tests of the unit's text.

use std::ffi::OsString;

use super::*;

#[test]
fn unit_quotes_what_systemd_would_expand() {
    let joined = JoinedHub {
        hub: BaseUrl::parse("https://hub.example").unwrap(),
        environment: RegistryEnvironmentId::new("box-7").unwrap(),
        token_file: "/home/a b/100%/$x\"y/token".into(),
    };
    let lookup = |name: &str| (name == "SSL_CERT_FILE").then(|| OsString::from("/c a.pem"));
    let text = unit_text(Path::new("/opt/exec-server"), &joined, &lookup);
    assert!(text.starts_with(MARK), "{text}");
    for line in [
        r#"ExecStart="/opt/exec-server" "--remote" "https://hub.example" "--environment-id" "box-7" "--remote-token-file" "/home/a b/100%%/$$x\"y/token""#,
        r#"Environment="SSL_CERT_FILE=/c a.pem""#,
        "WantedBy=default.target",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}\n{text}");
    }
}

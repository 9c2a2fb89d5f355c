use std::{fs, os::unix::fs::PermissionsExt as _};

use exec_transport::http::service::HttpPeer;
use serde_json::Value;

use super::{AuditAction, AuditEvent, AuditLog, AuditOutcome};
use crate::{
    principal::{AuthEvidence, EnvironmentGlobs, Principal, RoleSet},
    store::Timestamp,
};

fn event() -> AuditEvent {
    let peer = HttpPeer::Network("192.0.2.1:99".parse().unwrap());
    AuditEvent::new(Timestamp::from_seconds(0), AuditAction::Connect, peer)
}

#[test]
fn line_contains_who_what_when_and_where() {
    let mut event = event();
    event.set_principal(&Principal {
        name: "alice".parse().unwrap(),
        roles: RoleSet::default(),
        environments: EnvironmentGlobs::default(),
        evidence: AuthEvidence::Token("ab12".to_owned()),
    });
    event.environment = Some("env-1".parse().unwrap());
    event.registration = Some("reg-1".parse().unwrap());
    event.outcome = AuditOutcome::Refused("environment_offline");
    let expected = r#"{"at":"1970-01-01T00:00:00.000Z","action":"connect","outcome":"refused","reason":"environment_offline","peer":"192.0.2.1:99","principal":"alice","evidence":"token:ab12","environment":"env-1","registration":"reg-1"}"#;
    assert_eq!(event.line(), expected);
}

#[test]
fn lines_are_appended_to_a_private_file_and_flushed_on_drop() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    fs::write(&path, "{}\n").unwrap();
    let audit = AuditLog::file(&path).unwrap();
    for _ in 0..100 {
        audit.record(&event());
    }
    drop(audit);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 101);
    assert_eq!(lines[100]["action"], "connect");

    let fresh = directory.path().join("fresh.log");
    drop(AuditLog::file(&fresh).unwrap());
    assert_eq!(
        fs::metadata(&fresh).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[test]
fn unauthenticated_flood_is_rate_limited_without_hiding_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let audit = AuditLog::file(&path).unwrap();
    let mut refused = event();
    refused.outcome = AuditOutcome::Refused("unauthorized");
    for _ in 0..50_000 {
        audit.record(&refused);
    }
    let mut known = refused.clone();
    known.principal = Some("alice".parse().unwrap());
    audit.record(&known);
    drop(audit);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let lost: u64 = lines.iter().filter_map(|line| line["lost"].as_u64()).sum();
    let written = lines.iter().filter(|line| line["lost"].is_null()).count();
    assert!(written < 2000, "{written} lines");
    assert_eq!(written as u64 + lost, 50_001, "every loss is counted");
    assert!(lines.iter().any(|line| line["principal"] == "alice"));
}

#[test]
fn rotated_file_is_created_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let audit = AuditLog::file(&path).unwrap();
    fs::rename(&path, directory.path().join("audit.log.1")).unwrap();
    audit.record(&event());
    drop(audit);
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
}

#[test]
fn unwritable_path_is_an_error_at_start() {
    let directory = tempfile::tempdir().unwrap();
    let error = AuditLog::file(directory.path()).unwrap_err().to_string();
    assert!(error.contains("audit log"), "{error}");
}

//! Profiles for which the proxy is the only way out.

use serde_json::json;
use tempfile::TempDir;

use super::{HELLO, NetworkFixture, as_every_user, profile, proxy, sandbox};
use crate::{client::with, fs_fixture::uri};

as_every_user!(
    enforcement_applies_to_every_profile,
    restricted_network_is_always_enforced,
    file_access_follows_the_profile,
);

/// Asserts that only the proxy reaches the origin.
async fn check(fixture: &mut NetworkFixture, members: &serde_json::Value) {
    let before = fixture.origin.connection_count();
    let script = format!(
        "get {address}; say {port} 'GET / HTTP/1.1\\r\\n\\r\\n'",
        address = fixture.origin.address(),
        port = fixture.origin.port
    );
    let params = fixture.script(&script, members.clone());
    let id = fixture.start(params).await;
    let events = fixture.finish(&id).await;
    assert!(events.stdout().ends_with(HELLO), "{members}: {events:?}");
    assert_eq!(
        fixture.origin.connection_count(),
        before + 1,
        "{members}: {events:?}"
    );
    let port = fixture.origin.port.to_string();
    let params = fixture.probe(&["connect", "127.0.0.1", &port], members.clone());
    assert_eq!(
        fixture.run(params).await,
        "refused ECONNREFUSED\n",
        "{members}"
    );
    let params = fixture.probe(&["connect", "10.0.0.1", &port], members.clone());
    assert_eq!(
        fixture.run(params).await,
        "refused ENETUNREACH\n",
        "{members}"
    );
}

async fn enforcement_applies_to_every_profile(fixture: &mut NetworkFixture) {
    let unrestricted = json!({"type": "unrestricted"});
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "write"});
    let full = json!({"type": "restricted", "entries": [root]});
    for sandbox in [
        sandbox("restricted"),
        sandbox("enabled"),
        profile(json!({"type": "managed", "file_system": unrestricted, "network": "restricted"})),
        profile(json!({"type": "managed", "file_system": unrestricted, "network": "enabled"})),
        profile(json!({"type": "managed", "file_system": full, "network": "enabled"})),
        profile(json!({"type": "external", "network": "restricted"})),
        profile(json!({"type": "external", "network": "enabled"})),
        profile(json!({"type": "disabled"})),
    ] {
        let members = json!({
            "sandbox": sandbox, "enforceManagedNetwork": true,
            "networkProxy": proxy(json!({"127.0.0.1": "allow"})),
        });
        check(fixture, &members).await;
    }
}

async fn restricted_network_is_always_enforced(fixture: &mut NetworkFixture) {
    let unrestricted = json!({"type": "unrestricted"});
    for sandbox in [
        sandbox("restricted"),
        profile(json!({"type": "managed", "file_system": unrestricted, "network": "restricted"})),
        profile(json!({"type": "external", "network": "restricted"})),
    ] {
        let members = json!({
            "sandbox": sandbox, "networkProxy": proxy(json!({"127.0.0.1": "allow"})),
        });
        check(fixture, &members).await;
    }
}

async fn file_access_follows_the_profile(fixture: &mut NetworkFixture) {
    let temp_dir = TempDir::new_in("/dev/shm").unwrap();
    let (inside, outside) = (
        fixture.server.path("inside"),
        temp_dir.path().join("outside"),
    );
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
    let work = json!({
        "path": {"type": "path", "path": uri(fixture.server.dir.path())}, "access": "write",
    });
    let files = json!({"type": "restricted", "entries": [root, work]});
    let members = json!({
        "sandbox": profile(json!({"type": "managed", "file_system": files, "network": "enabled"})),
        "enforceManagedNetwork": true,
        "networkProxy": proxy(json!({"127.0.0.1": "allow"})),
    });
    check(fixture, &members).await;
    let script = format!(
        "echo x >{}; echo y >{}",
        inside.display(),
        outside.display()
    );
    let params = fixture.script(&script, with(members, json!({})));
    fixture.run(params).await;
    assert!(inside.exists() && !outside.exists());
}

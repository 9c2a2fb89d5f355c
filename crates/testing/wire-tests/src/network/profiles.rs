//! Which profiles have the proxy as their only way out.

use serde_json::json;
use tempfile::TempDir;

use super::stage::{HELLO, Stage, as_every_user, profile, proxy, sandbox};
use crate::{client::with, scene::uri};

as_every_user!(
    enforcing_holds_for_every_profile,
    a_restricted_network_needs_no_enforcing,
    files_are_as_the_profile_says,
);

/// Checks that the proxy is the only way to the origin.
async fn check(stage: &mut Stage, members: &serde_json::Value) {
    let before = stage.origin.visits();
    let script = format!(
        "get {place}; say {port} 'GET / HTTP/1.1\\r\\n\\r\\n'",
        place = stage.origin.place(),
        port = stage.origin.port
    );
    let params = stage.script(&script, members.clone());
    let id = stage.start(params).await;
    let events = stage.finish(&id).await;
    assert!(events.stdout().ends_with(HELLO), "{members}: {events:?}");
    assert_eq!(stage.origin.visits(), before + 1, "{members}: {events:?}");
    let port = stage.origin.port.to_string();
    let params = stage.probe(&["connect", "127.0.0.1", &port], members.clone());
    assert_eq!(
        stage.run(params).await,
        "refused ECONNREFUSED\n",
        "{members}"
    );
    let params = stage.probe(&["connect", "10.0.0.1", &port], members.clone());
    assert_eq!(
        stage.run(params).await,
        "refused ENETUNREACH\n",
        "{members}"
    );
}

async fn enforcing_holds_for_every_profile(stage: &mut Stage) {
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
        check(stage, &members).await;
    }
}

async fn a_restricted_network_needs_no_enforcing(stage: &mut Stage) {
    let unrestricted = json!({"type": "unrestricted"});
    for sandbox in [
        sandbox("restricted"),
        profile(json!({"type": "managed", "file_system": unrestricted, "network": "restricted"})),
        profile(json!({"type": "external", "network": "restricted"})),
    ] {
        let members = json!({
            "sandbox": sandbox, "networkProxy": proxy(json!({"127.0.0.1": "allow"})),
        });
        check(stage, &members).await;
    }
}

async fn files_are_as_the_profile_says(stage: &mut Stage) {
    let place = TempDir::new_in("/dev/shm").unwrap();
    let (inside, outside) = (stage.server.path("inside"), place.path().join("outside"));
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
    let work = json!({
        "path": {"type": "path", "path": uri(stage.server.dir.path())}, "access": "write",
    });
    let files = json!({"type": "restricted", "entries": [root, work]});
    let members = json!({
        "sandbox": profile(json!({"type": "managed", "file_system": files, "network": "enabled"})),
        "enforceManagedNetwork": true,
        "networkProxy": proxy(json!({"127.0.0.1": "allow"})),
    });
    check(stage, &members).await;
    let script = format!(
        "echo x >{}; echo y >{}",
        inside.display(),
        outside.display()
    );
    let params = stage.script(&script, with(members, json!({})));
    stage.run(params).await;
    assert!(inside.exists() && !outside.exists());
}

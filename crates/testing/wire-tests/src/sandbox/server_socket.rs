//! The directory of the server's unix socket, which no sandbox may change.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{fs::MetadataExt, net::UnixListener},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::policies::path;
use crate::{
    client::{Client, argv_params, encode, merge},
    fs_fixture::uri,
    server::{Server, Transport},
};

/// Tries to replace the socket at every level from its parent directory to the file.
const SCRIPT: &str = r#"
socket=$1; run=${socket%/*}; above=${run%/*}
touch "$run/new"; mkdir "$run/below"; ln -s /etc/passwd "$run/link"
echo x >> "$run/server.log"
chmod 777 "$run"; chmod 666 "$socket"
rm -f "$socket"; mv "$socket" "$run/old"; mv "$socket" "$above/old"; ln "$socket" "$run/hard"
rm -rf "$run"; mv "$run" "$run.old" && mkdir "$run"
mv "$above" "$above.old" && mkdir -p "$run"
above=${above%/*}; mv "$above" "$above.old" && mkdir -p "$run"
exit 0
"#;

struct NetworkFixture {
    server: Server,
    client: Client,
    run: PathBuf,
    _listener: UnixListener,
    commands: u32,
}

impl NetworkFixture {
    /// Starts a server with its socket below the home, as without a runtime directory.
    async fn new(flags: &[&str]) -> Self {
        let mut server = Server::start(Transport::WebSocket, flags).await;
        let client = server.ready().await;
        let run = server.dir.path().canonicalize().unwrap();
        let run = run.join(".local/state/exec-server/run");
        let listener = UnixListener::bind(run.join("server.sock")).unwrap();
        fs::write(run.join("server.log"), "log").unwrap();
        // Bubblewrap creates nothing, so the protected paths must exist.
        for root in run.ancestors().take(5) {
            for name in [".git", ".agents", ".codex", ".aws"] {
                if root != run {
                    fs::create_dir_all(root.join(name)).unwrap();
                }
            }
        }
        Self {
            server,
            client,
            run,
            _listener: listener,
            commands: 0,
        }
    }

    /// Creates a policy with some writable roots in which everything is readable.
    fn policy(&self, roots: &[&Path], network: &str) -> Value {
        let mut entries =
            vec![json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"})];
        entries.extend(roots.iter().map(|root| path(&uri(root), "write")));
        json!({
            "permissions": {
                "type": "managed",
                "file_system": {"type": "restricted", "entries": entries},
                "network": network,
            },
            "cwd": uri(self.server.dir.path()),
            "workspaceRoots": [],
            "windowsSandboxLevel": "disabled",
        })
    }

    /// Runs the script under a policy.
    async fn attack(&mut self, policy: &Value) {
        self.commands += 1;
        let id = format!("attack-{}", self.commands);
        let socket = self.run.join("server.sock");
        let line = ["/bin/sh", "-c", SCRIPT, "sh", socket.to_str().unwrap()];
        let mut params = argv_params(&id, &line);
        merge(&mut params, json!({"sandbox": policy}));
        self.client.call("process/start", params).await;
        let events = self.client.finish(&id).await;
        assert_eq!(events.code(), 0);
    }

    /// Returns names, inodes, modes and the content of the log.
    fn found(&self) -> BTreeMap<PathBuf, (u64, u32)> {
        let mut found = BTreeMap::new();
        for directory in self.run.ancestors().take(5) {
            let metadata = fs::symlink_metadata(directory).unwrap();
            found.insert(directory.to_owned(), (metadata.ino(), metadata.mode()));
        }
        for entry in fs::read_dir(&self.run).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            found.insert(entry.path(), (metadata.ino(), metadata.mode()));
        }
        assert_eq!(
            fs::read_to_string(self.run.join("server.log")).unwrap(),
            "log"
        );
        found
    }
}

#[tokio::test]
async fn sandboxed_command_cannot_change_the_socket_directory() {
    for mechanism in ["cheapest", "namespaces", "bubblewrap"] {
        let mut fixture = NetworkFixture::new(&["--sandbox-mechanism", mechanism]).await;
        let was = fixture.found();
        let run = fixture.run.clone();
        let mut roots: Vec<PathBuf> = run.ancestors().take(5).map(Path::to_owned).collect();
        roots.push(run.join("server.sock"));
        roots.push(run.join("server.log"));
        for root in roots {
            for network in ["restricted", "enabled"] {
                let policy = fixture.policy(&[&root], network);
                fixture.attack(&policy).await;
                assert_eq!(fixture.found(), was, "{mechanism} {network} {root:?}");
            }
        }
    }
}

#[tokio::test]
async fn writable_home_stays_usable_beside_the_socket() {
    let mut fixture = NetworkFixture::new(&[]).await;
    let home = fixture.server.dir.path().canonicalize().unwrap();
    let policy = fixture.policy(&[&home], "restricted");
    let line = [
        "/bin/sh",
        "-c",
        "cd \"$1\" && mkdir -p .local/share/x && echo ok",
        "sh",
    ];
    let line = [&line[..], &[home.to_str().unwrap()]].concat();
    let mut params = argv_params("usable", &line);
    merge(&mut params, json!({"sandbox": policy}));
    fixture.client.call("process/start", params).await;
    assert_eq!(fixture.client.finish("usable").await.stdout(), "ok\n");
}

#[tokio::test]
async fn sandboxed_file_operation_cannot_change_the_socket_directory() {
    let mut fixture = NetworkFixture::new(&[]).await;
    let was = fixture.found();
    let run = fixture.run.clone();
    let (socket, log, new) = ("server.sock", "server.log", "new");
    for root in [
        run.clone(),
        run.join(socket),
        run.join(log),
        run.join("../.."),
    ] {
        let root = root.canonicalize().unwrap();
        let policy = fixture.policy(&[&root], "restricted");
        let at = |name: &str| uri(&run.join(name));
        let operations = [
            (
                "fs/writeFile",
                json!({"path": at(new), "dataBase64": encode(b"x")}),
            ),
            (
                "fs/writeFile",
                json!({"path": at(log), "dataBase64": encode(b"x")}),
            ),
            (
                "fs/createDirectory",
                json!({"path": at(new), "recursive": false}),
            ),
            (
                "fs/remove",
                json!({"path": at(socket), "recursive": false, "force": false}),
            ),
            (
                "fs/remove",
                json!({"path": uri(&run), "recursive": true, "force": true}),
            ),
            (
                "fs/rename",
                json!({"sourcePath": at(socket), "destinationPath": at(new)}),
            ),
            (
                "fs/rename",
                json!({"sourcePath": uri(&run), "destinationPath": uri(&run.with_extension("old"))}),
            ),
            (
                "fs/rename",
                json!({"sourcePath": at(log), "destinationPath": at(socket), "overwrite": true}),
            ),
            (
                "fs/copy",
                json!({"sourcePath": at(log), "destinationPath": at(new), "recursive": false}),
            ),
        ];
        for (method, mut params) in operations {
            merge(&mut params, json!({"sandbox": policy}));
            let id = fixture.client.request(method, params.clone()).await;
            let answer = fixture.client.answer(id).await;
            assert!(answer["error"].is_object(), "{method} {params}: {answer}");
            assert_eq!(fixture.found(), was, "{method} {params}");
        }
    }
}

#[tokio::test]
async fn server_socket_in_a_writable_directory_is_not_replaced() {
    let mut server = Server::start(Transport::Unix, &[]).await;
    let mut client = server.ready().await;
    let directory = server.dir.path().canonicalize().unwrap();
    let inode = || fs::symlink_metadata(server.path("s")).unwrap().ino();
    let was = inode();
    let script = "cd \"$1\"; touch new && rm -f s; mv s t; rm -f s.lock; mv new s; exit 0";
    let line = ["/bin/sh", "-c", script, "sh", directory.to_str().unwrap()];
    let mut params = argv_params("attack", &line);
    let entries = json!([
        {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"},
        path(&uri(&directory), "write"),
    ]);
    let files = json!({"type": "restricted", "entries": entries});
    let permissions = json!({"type": "managed", "file_system": files, "network": "restricted"});
    let sandbox = json!({"permissions": permissions, "windowsSandboxLevel": "disabled"});
    merge(&mut params, json!({"sandbox": sandbox}));
    client.call("process/start", params).await;
    assert_eq!(client.finish("attack").await.code(), 0);
    assert!(directory.join("new").exists(), "the directory is writable");
    assert_eq!(inode(), was);
    assert!(server.path("s.lock").exists());
}

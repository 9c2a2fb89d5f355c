//! Fixture: a server, a client, and a directory with one file of each type.

use std::{
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink, net::UnixListener},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    client::{Client, decode, encode, merge},
    server::{Server, Transport},
};

/// Server, client and files of a file test: `file` holds `hello`; `dir` holds the file `inner` with
/// `x`, and the empty directory `sub`; `to-file`, `to-dir`, `to-none` and `to-itself` are symlinks;
/// `fifo` and `socket` are what their names say.
#[derive(Debug)]
pub(crate) struct FsFixture {
    pub(crate) server: Server,
    pub(crate) client: Client,
    root: PathBuf,
}

impl FsFixture {
    /// Starts a server and creates the files.
    pub(crate) async fn new(transport: Transport) -> Self {
        Self::on(Server::start(transport, &[]).await).await
    }

    /// Starts a server with flags and creates the files.
    pub(crate) async fn with(transport: Transport, flags: &[&str]) -> Self {
        Self::on(Server::start(transport, flags).await).await
    }

    /// Creates the files for a server without a client.
    pub(crate) async fn on(mut server: Server) -> Self {
        let client = server.ready().await;
        let root = fs::canonicalize(server.dir.path()).unwrap().join("scene");
        let fixture = Self {
            server,
            client,
            root,
        };
        fixture.build();
        fixture
    }

    fn build(&self) {
        fs::create_dir_all(self.path("dir/sub")).unwrap();
        fs::write(self.path("file"), "hello").unwrap();
        fs::write(self.path("dir/inner"), "x").unwrap();
        for (target, link) in [
            ("file", "to-file"),
            ("dir", "to-dir"),
            ("nothing", "to-none"),
            ("to-itself", "to-itself"),
        ] {
            symlink(target, self.path(link)).unwrap();
        }
        let fifo = self.path("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        drop(UnixListener::bind(self.path("socket")).unwrap());
    }

    /// Recreates the files.
    pub(crate) fn reset(&self) {
        fs::remove_dir_all(&self.root).unwrap();
        self.build();
    }

    /// Returns the native path of a name; an empty name is the root.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() {
            self.root.clone()
        } else {
            self.root.join(name)
        }
    }

    /// Returns the URI of a name. A URI is returned unchanged.
    pub(crate) fn uri(&self, name: &str) -> String {
        if name.starts_with("file:") {
            return name.to_owned();
        }
        let root = uri(&self.root);
        if name.is_empty() {
            root
        } else {
            format!("{root}/{name}")
        }
    }

    /// Builds params with the URI of a name as `path`, and extra fields.
    pub(crate) fn params(&self, name: &str, extra: Value) -> Value {
        let mut params = json!({"path": self.uri(name)});
        merge(&mut params, extra);
        params
    }

    /// Sends a request for a path and returns the result.
    pub(crate) async fn call(&mut self, method: &str, name: &str, extra: Value) -> Value {
        let params = self.params(name, extra);
        self.client.call(method, params).await
    }

    /// Sends a request for a path that must return `{}`.
    pub(crate) async fn done(&mut self, method: &str, name: &str, extra: Value) {
        assert_eq!(self.call(method, name, extra).await, json!({}), "{method}");
    }

    /// Sends a request for a path that must be refused with this code.
    pub(crate) async fn refused(
        &mut self,
        code: i64,
        method: &str,
        name: &str,
        extra: Value,
    ) -> String {
        let params = self.params(name, extra);
        self.client.expect_error(code, method, params).await
    }

    /// Sends the same request for many paths: 0 means `{}`, anything else is an error code.
    /// Recreates the files for each.
    pub(crate) async fn table(&mut self, method: &str, extra: &Value, rows: &[(&str, i64)]) {
        for (name, code) in rows {
            self.reset();
            let params = self.params(name, extra.clone());
            let id = self.client.request(method, params.clone()).await;
            let answer = self.client.answer(id).await;
            if *code == 0 {
                assert_eq!(answer["result"], json!({}), "{method} {params}: {answer}");
            } else {
                assert_eq!(
                    answer["error"]["code"], *code,
                    "{method} {params}: {answer}"
                );
            }
        }
    }

    /// Writes a file.
    pub(crate) async fn write(&mut self, name: &str, data: &[u8]) {
        let data = json!({"dataBase64": encode(data)});
        self.done("fs/writeFile", name, data).await;
    }

    /// Reads a file.
    pub(crate) async fn read(&mut self, name: &str) -> Vec<u8> {
        let mut result = self.call("fs/readFile", name, json!({})).await;
        assert_eq!(result.as_object().unwrap().len(), 1, "{result}");
        decode(&result["dataBase64"].take())
    }

    /// Returns the content of a file, read directly.
    pub(crate) fn content(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Returns the sorted names in a directory, read directly.
    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        names(&self.path(name))
    }
}

/// Creates a directory for many files, in memory if possible.
pub(crate) fn in_memory() -> TempDir {
    TempDir::new_in("/dev/shm").unwrap_or_else(|_| TempDir::new().unwrap())
}

/// Returns the sorted names in a directory.
fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Returns the URI of a native path.
pub(crate) fn uri(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let text: String = bytes
        .iter()
        .map(|byte| match byte {
            b'/' | b'-' | b'.' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                char::from(*byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect();
    format!("file://{text}")
}

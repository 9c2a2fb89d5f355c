//! The suite against the exec-server of the stock Codex CLI, over a websocket, over stdio, and as an
//! executor behind our hub.
//!
//! `EXEC_CONFORMANCE_STOCK` names the CLI's own executable. What it does otherwise is declared in
//! [`STOCK`], and the cases assert it. Not part of the default run: `scripts/stock-codex` runs it.
#![expect(
    clippy::expect_used,
    reason = "a subject that cannot be built fails its case"
)]

use std::{ffi::OsString, fs, path::PathBuf, process::Stdio, time::Duration};

use exec_client::client::ExecServerClient;
use exec_conformance::{
    conformance_suite,
    difference::{STOCK, STOCK_RELAYED},
    hub::{ENVIRONMENT, Hub},
    subject::{HOST_ENVIRONMENT, Subject},
};
use exec_transport::connect::{Program, WebSocket};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

conformance_suite!(stock_websocket, over_websocket());
conformance_suite!(stock_stdio, over_stdio());
conformance_suite!(stock_relay, over_relay());

/// How long the server may take to print its URL on a loaded machine.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// A stock server that listens. It is told to end when this is dropped: then it ends its processes,
/// too.
struct Stock {
    child: Child,
    _home: TempDir,
}

impl Drop for Stock {
    fn drop(&mut self) {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // If it has ended already, so much the better.
            kill_process(pid, Signal::TERM).ok();
        }
    }
}

async fn over_websocket() -> Subject {
    let home = home();
    let mut child = Command::new(executable())
        .args(["exec-server", "--listen", "ws://127.0.0.1:0"])
        .env_clear()
        .envs(environment(&home))
        .current_dir(home.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the stock server starts");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let stock = Stock { child, _home: home };
    let line = timeout(STARTS_WITHIN, lines.next_line()).await;
    let line = line.expect("a line comes in time").expect("it can be read");
    let url = line.expect("the server prints its URL");
    let url = url.parse().expect("a URL is printed");
    let link = WebSocket::new(url).open().await.expect("it listens");
    Subject::remote_with(link, STOCK, PROBE, stock).await
}

async fn over_relay() -> Subject {
    let hub = Hub::start().await;
    let home = home();
    let child = Command::new(executable())
        .args(["exec-server", "--remote", &hub.url])
        .args(["--environment-id", ENVIRONMENT])
        .env_clear()
        .envs(environment(&home))
        .env("CODEX_API_KEY", &hub.token)
        .current_dir(home.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the stock executor starts");
    let stock = Stock { child, _home: home };
    // It does not tell when it is there; connecting waits for it.
    let client = ExecServerClient::connect_relay(hub.args()).await;
    let client = client.expect("the executor is reached");
    Subject::of_client(&client, STOCK_RELAYED, PROBE, (stock, hub))
}

async fn over_stdio() -> Subject {
    let home = home();
    let variables = environment(&home).map(|(name, value)| {
        let mut variable = OsString::from(name);
        variable.push("=");
        variable.push(value);
        variable
    });
    let mut args = vec![OsString::from("-i")];
    args.extend(variables);
    args.push(executable().into());
    args.extend(["exec-server", "--listen", "stdio"].map(OsString::from));
    let program = Program {
        args,
        ..Program::new("env")
    };
    let link = program.start().expect("the stock server starts");
    Subject::remote_with(link, STOCK, PROBE, home).await
}

const PROBE: &str = env!("CARGO_BIN_EXE_exec-probe");

/// A home that is not below a system's temporary directory: there, the stock server has no sandbox.
fn home() -> TempDir {
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a home can be made");
    fs::create_dir(home.path().join(".codex")).expect("a directory can be made in it");
    home
}

/// What a subject's host holds, and a home without a configuration.
fn environment(home: &TempDir) -> impl Iterator<Item = (&'static str, OsString)> + use<> {
    let codex_home = home.path().join(".codex");
    let homes = [
        ("HOME", home.path().as_os_str().to_owned()),
        ("CODEX_HOME", codex_home.into_os_string()),
    ];
    let path = [("PATH", OsString::from("/usr/bin:/bin"))];
    let host = HOST_ENVIRONMENT.map(|(name, value)| (name, OsString::from(value)));
    homes.into_iter().chain(path).chain(host)
}

fn executable() -> PathBuf {
    let named = std::env::var_os("EXEC_CONFORMANCE_STOCK");
    named
        .expect("EXEC_CONFORMANCE_STOCK names the executable of the stock Codex CLI")
        .into()
}

//! Runs the suite against the exec-server of the stock Codex CLI: over a websocket, over stdio, and
//! as an executor behind our hub.
//!
//! `EXEC_CONFORMANCE_STOCK` names the CLI's executable. Its differences are declared in [`STOCK`],
//! and the cases assert them. Not part of the default run: `scripts/stock-codex` runs it.
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
use exec_transport::connect::{ServerProgram, WebSocketConnector};
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

/// Timeout for the server to print its URL on a loaded machine.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);

/// Stock server. Dropping it sends SIGTERM, so that the server terminates its processes.
struct StockServer {
    child: Child,
    _home: TempDir,
}

impl Drop for StockServer {
    fn drop(&mut self) {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // It may have exited already.
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
        .expect("failed to start the stock server");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is not piped")).lines();
    let stock = StockServer { child, _home: home };
    let line = timeout(STARTUP_TIMEOUT, lines.next_line()).await;
    let line = line
        .expect("stock server printed nothing in time")
        .expect("failed to read stdout");
    let url = line.expect("server prints its URL");
    let url = url.parse().expect("stock server printed no URL");
    let link = WebSocketConnector::new(url)
        .open()
        .await
        .expect("failed to accept or connect");
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
        .expect("failed to start the stock executor");
    let stock = StockServer { child, _home: home };
    // The executor does not report when it is online; connecting waits for it.
    let client = ExecServerClient::connect_relay(hub.args()).await;
    let client = client.expect("failed to connect to the executor");
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
    let program = ServerProgram {
        args,
        ..ServerProgram::new("env")
    };
    let link = program.start().expect("failed to start the stock server");
    Subject::remote_with(link, STOCK, PROBE, home).await
}

const PROBE: &str = env!("CARGO_BIN_EXE_exec-probe");

/// Creates a home outside the system's temporary directories, below which the stock server has no
/// sandbox.
fn home() -> TempDir {
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("failed to create a home");
    fs::create_dir(home.path().join(".codex")).expect("failed to create `.codex`");
    home
}

/// Returns the host variables of a subject, with an empty home.
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
        .expect("set EXEC_CONFORMANCE_STOCK to the stock Codex CLI executable")
        .into()
}

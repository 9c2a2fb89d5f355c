//! A background server that an earlier version of the program started, and that still runs.
//!
//! Invariant: it is replaced only if it has no other connection and nothing would end. Elsewhere: how
//! a server hands over (`exec-server upgrade` asks for the same).

use std::{fmt, path::PathBuf, time::Duration};

use exec_client::client::ExecServerClient;
use exec_wire::server::{ReadServerStatus, UpgradeServer};
use semver::Version;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, sleep, timeout},
};

use crate::{background_server::open_stream, local_socket::LocalSocket};

/// How long the new server may take to serve.
const SERVE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often to poll for the new server.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Limit for the metrics of the server, which take less than a millisecond.
const METRICS_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest page of metrics that is read.
const MAX_METRICS_BYTES: u64 = 1 << 20;

/// A running server that is older than this program. Displays as a notice with the next step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OutdatedServer {
    version: Version,
}

impl OutdatedServer {
    /// Returns the server of a connection if it is older than this program.
    pub fn of(client: &ExecServerClient) -> Option<Self> {
        let session = client.session();
        let version = &session.server.as_ref()?.version;
        Self::older(version, env!("CARGO_PKG_VERSION"))
    }

    fn older(server: &str, own: &str) -> Option<Self> {
        let version = Version::parse(server).ok()?;
        (version < Version::parse(own).ok()?).then_some(Self { version })
    }

    /// Replaces the server with this program if it has no other connection and no process would end.
    /// Returns whether this program serves now. Sessions and durable processes go on.
    pub async fn upgrade_if_idle(&self, socket: &LocalSocket, client: &ExecServerClient) -> bool {
        if connections(socket).await != Some(1) {
            return false;
        }
        let Some(program) = own_program() else {
            return false;
        };
        let upgrade = UpgradeServer {
            program: Some(program),
            force: false,
        };
        let started = match client.call(upgrade).await {
            Ok(started) => started,
            Err(error) => {
                tracing::debug!(%error, "the server cannot be upgraded now");
                return false;
            }
        };
        let deadline = Instant::now() + SERVE_TIMEOUT;
        while Instant::now() < deadline {
            match client.call(ReadServerStatus {}).await {
                Ok(status) if status.os_pid == started.os_pid => return true,
                Ok(status) if status.upgrade_error.is_some() => return false,
                // The connection breaks in between.
                Ok(_) | Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
        false
    }
}

impl fmt::Display for OutdatedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (old, own) = (&self.version, env!("CARGO_PKG_VERSION"));
        write!(
            f,
            "the running server of this machine has version {old}, this program {own}; \
             `exec-server upgrade"
        )?;
        if let Some(program) = own_program() {
            write!(f, " --to {program}")?;
        }
        write!(f, "` replaces it, and keeps sessions and durable processes")
    }
}

/// Returns the path of this program, unless its file was replaced or removed.
fn own_program() -> Option<String> {
    let program: PathBuf = std::env::current_exe().ok()?;
    let program = program.exists().then_some(program)?;
    program.into_os_string().into_string().ok()
}

/// Returns the number of connections, as the metrics of the server tell it.
async fn connections(socket: &LocalSocket) -> Option<u64> {
    let page = timeout(METRICS_TIMEOUT, async {
        let mut stream = open_stream(socket).await.ok()?;
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut page = String::new();
        let mut stream = stream.take(MAX_METRICS_BYTES);
        stream.read_to_string(&mut page).await.ok()?;
        Some(page)
    });
    parse_connections(&page.await.ok()??)
}

fn parse_connections(page: &str) -> Option<u64> {
    let mut lines = page.lines();
    let count = lines.find_map(|line| line.strip_prefix("exec_server_connections "))?;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_earlier_versions_are_outdated() {
        assert!(OutdatedServer::older("0.9.0", "0.10.0").is_some());
        assert!(OutdatedServer::older("0.10.0-rc.1", "0.10.0").is_some());
        for server in ["0.10.0", "0.10.1", "1.0.0", "", "unknown"] {
            assert_eq!(OutdatedServer::older(server, "0.10.0"), None, "{server}");
        }
    }

    #[test]
    fn connections_are_read_from_the_metrics() {
        let page = "HTTP/1.1 200 OK\r\n\r\n# TYPE exec_server_connections gauge\n\
                    exec_server_connections 3\nexec_server_connections_total 7\n";
        assert_eq!(parse_connections(page), Some(3));
        assert_eq!(parse_connections("exec_server_connections_total 7\n"), None);
    }
}

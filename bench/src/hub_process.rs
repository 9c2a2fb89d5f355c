//! A hub with its executors, its NATS server and a load balancer, all on free ports.
//!
//! Invariant: every process started here is killed here by its pid.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::bench_dir::BenchDir;
use crate::process_usage::ProcessUsage;

/// A hub on a free port. Dropping it kills the hub.
#[derive(Debug)]
pub(crate) struct HubProcess {
    program: PathBuf,
    url: String,
    token: String,
    child: ChildProcess,
}

impl HubProcess {
    /// Starts a single hub with its data in `dir`.
    pub(crate) fn start(program: &Path, dir: &BenchDir) -> Result<Self> {
        let data = dir.directory("hub")?;
        let token = create_token(program, &data)?;
        Self::start_node(program, &data, &token, &[])
    }

    /// Starts three hub nodes on one NATS server.
    pub(crate) fn start_cluster(program: &Path, dir: &BenchDir, nats: &str) -> Result<Vec<Self>> {
        let data = dir.directory("hub")?;
        let token = create_token(program, &data)?;
        let node = |name| {
            Self::start_node(
                program,
                &data,
                &token,
                &["--nats", nats, "--node-name", name],
            )
        };
        ["one", "two", "three"].into_iter().map(node).collect()
    }

    fn start_node(program: &Path, data: &Path, token: &str, flags: &[&str]) -> Result<Self> {
        let mut command = isolated_command(program);
        command.args(["hub", "--listen", "127.0.0.1:0"]).args(flags);
        let (child, url) = ChildProcess::start(command.arg("--data-dir").arg(data))?;
        ensure!(
            url.starts_with("http://"),
            "unexpected first line of the hub: `{url}`"
        );
        Ok(Self {
            program: program.to_owned(),
            url,
            token: token.to_owned(),
            child,
        })
    }

    /// Starts an executor that connects through `registry`, and waits until it is ready.
    pub(crate) fn start_executor(
        &self,
        registry: &str,
        environment: &str,
    ) -> Result<ExecutorProcess> {
        let mut command = isolated_command(&self.program);
        command
            .args(["--remote", registry, "--environment-id", environment])
            .env("EXEC_SERVER_REMOTE_TOKEN", &self.token);
        let (child, _) = ChildProcess::start(&mut command)?;
        Ok(ExecutorProcess { _child: child })
    }

    /// Returns the URL of the hub's registry.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the server's address.
    pub(crate) fn authority(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// Returns the token that all endpoints use.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Returns the hub's resident memory in bytes.
    pub(crate) fn resident_memory(&self) -> u64 {
        ProcessUsage::sample(self.child.child.id()).server_rss
    }
}

/// An executor connected to a hub. Dropping it kills the executor.
#[derive(Debug)]
pub(crate) struct ExecutorProcess {
    _child: ChildProcess,
}

/// A started process that has printed its first line.
#[derive(Debug)]
struct ChildProcess {
    child: Child,
    /// Kept open: a process whose stdout is closed may fail.
    stdout: BufReader<ChildStdout>,
}

impl ChildProcess {
    fn start(command: &mut Command) -> Result<(Self, String)> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("no stdout")?;
        let mut process = Self {
            child,
            stdout: BufReader::new(stdout),
        };
        let mut line = String::new();
        // A process that fails to start exits, which ends the read as well.
        process.stdout.read_line(&mut line)?;
        ensure!(
            !line.is_empty(),
            "{:?} printed nothing",
            command.get_program()
        );
        Ok((process, line.trim_end().to_owned()))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // The process may already have exited.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns a command without stdin and the environment of this process.
pub(crate) fn isolated_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null());
    command
}

fn create_token(program: &Path, data: &Path) -> Result<String> {
    let output = isolated_command(program)
        .args(["hub", "token", "create", "--name", "bench"])
        .args(["--role", "executor", "--role", "harness", "--role", "admin"])
        .arg("--data-dir")
        .arg(data)
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "cannot create a token: {text}");
    let token = text.lines().last().context("no token was printed")?;
    Ok(token.trim().to_owned())
}

/// Longest wait for the server's port.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// A NATS server with JetStream. Dropping it kills the server.
#[derive(Debug)]
pub(crate) struct NatsProcess {
    url: String,
    child: Child,
}

impl NatsProcess {
    /// Starts a server on a free port. Fails if this machine has no `nats-server`.
    pub(crate) fn start(dir: &BenchDir) -> Result<Self> {
        let data = dir.directory("nats")?;
        let system_path = Path::new("/usr/sbin/nats-server");
        let program = if system_path.exists() {
            system_path
        } else {
            Path::new("nats-server")
        };
        let child = Command::new(program)
            .args(["--addr", "127.0.0.1", "--port", "-1", "--jetstream"])
            .arg("--store_dir")
            .arg(data.join("store"))
            .arg("--ports_file_dir")
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run nats-server")?;
        let mut server = Self {
            url: String::new(),
            child,
        };
        let deadline = Instant::now() + RESPONSE_TIMEOUT;
        while server.url.is_empty() {
            ensure!(
                Instant::now() < deadline,
                "nats-server did not report its port"
            );
            thread::sleep(Duration::from_millis(20));
            server.url = read_ports_file(&data).unwrap_or_default();
        }
        Ok(server)
    }

    /// Returns the server's address.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for NatsProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Reads the URL from the file that the server writes when it is ready.
fn read_ports_file(data: &Path) -> Option<String> {
    let mut files = fs::read_dir(data).ok()?.flatten().map(|file| file.path());
    let file = files.find(|path| path.extension().is_some_and(|kind| kind == "ports"))?;
    let ports: Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    Some(ports["nats"][0].as_str()?.to_owned())
}

/// Load balancer in front of several hub nodes. It runs on a free port until the program exits.
#[derive(Debug)]
pub(crate) struct NodeBalancer {
    url: String,
}

impl NodeBalancer {
    /// Starts forwarding each connection to the next node that accepts it, round-robin.
    pub(crate) fn start(nodes: Vec<String>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        thread::spawn(move || {
            for (turn, client) in listener.incoming().enumerate() {
                let order = nodes.iter().cycle().skip(turn % nodes.len());
                let mut order = order.take(nodes.len());
                let server = order.find_map(|node| TcpStream::connect(node).ok());
                if let (Ok(client), Some(server)) = (client, server) {
                    // Close the connection if it cannot be forwarded.
                    drop(forward(&client, &server));
                }
            }
        });
        Ok(Self { url })
    }

    /// Returns the registry URL of the nodes behind it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

fn forward(client: &TcpStream, server: &TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    for (mut from, mut to) in [
        (client.try_clone()?, server.try_clone()?),
        (server.try_clone()?, client.try_clone()?),
    ] {
        thread::spawn(move || {
            let mut buffer = vec![0; 128 << 10];
            while let Ok(read @ 1..) = from.read(&mut buffer) {
                if to.write_all(&buffer[..read]).is_err() {
                    break;
                }
            }
            // If either end closes, close the other.
            drop((from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)));
        });
    }
    Ok(())
}

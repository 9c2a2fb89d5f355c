//! Ports of the command line: a transfer through `exec-server tunnel` while the sockets of the hub
//! are cut, and the time until `run --tunnel auto` prints the URL of a port.
//!
//! Both go through a TCP port of this machine, so that a reset or an early end is seen.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::Value;

use crate::bench_dir::BenchDir;
use crate::bench_plan::BenchPlan;
use crate::cutting_forwarder::CuttingForwarder;
use crate::hub_process::{HubProcess, isolated_command};
use crate::measures::tunnel_transfer::{BUFFER_BYTES, LIMIT, PERIOD, pattern};

/// Environment of the executor whose socket is cut.
const ENVIRONMENT: &str = "cuts";
/// One in this many cuts is at the executor, which waits longer after each.
const CUTS_PER_EXECUTOR_CUT: u32 = 10;
/// Time between two looks at the progress of a transfer.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(1);
/// What differs between the starts of two listeners, so that they fall into different parts of the
/// interval at which ports are listed.
const PHASE: Duration = Duration::from_millis(87);

/// Sends bytes through a port forward and a hub to an echo, while the sockets of the hub are cut.
/// Compares every byte that comes back, and returns the rate in each direction.
pub(super) fn measure_cuts(
    plan: &BenchPlan,
    program: &Path,
    dir: &BenchDir,
    hub: &HubProcess,
    echo: SocketAddr,
) -> Result<f64> {
    let harness = CuttingForwarder::start(hub.authority())?;
    let executor = CuttingForwarder::start(hub.authority())?;
    let registry = |link: &CuttingForwarder| format!("http://{}", link.address());
    let _executor = hub.start_executor(&registry(&executor), ENVIRONMENT)?;
    let forward = PortForward::start(program, dir, &registry(&harness), hub, echo.port())?;
    let bytes = plan.copy_bytes;
    let started_at = Instant::now();
    let stream = TcpStream::connect(forward.address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let (progress, has_ended) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let upload = scope.spawn(|| send_pattern(&stream, bytes));
        let cutting = scope.spawn(|| {
            for number in 1..=plan.tunnel_cuts {
                let position = bytes / u64::from(plan.tunnel_cuts + 1) * u64::from(number);
                let link = match number % CUTS_PER_EXECUTOR_CUT {
                    2 => &executor,
                    _ => &harness,
                };
                // After a cut, it takes a while until there is a connection again.
                let is_cut = || progress.load(Ordering::Relaxed) >= position && link.cut();
                while !is_cut() {
                    let is_running = !has_ended.load(Ordering::Relaxed);
                    ensure!(is_running, "cut {number}: the transfer had ended");
                    thread::sleep(PROGRESS_INTERVAL);
                }
            }
            Ok(())
        });
        let received = receive_pattern(&stream, bytes, &progress);
        has_ended.store(true, Ordering::Relaxed);
        if received.is_err() {
            // Ends the upload, too.
            drop(stream.shutdown(Shutdown::Both));
        }
        let join = |ended: thread::Result<Result<()>>| {
            ended.unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
        };
        let (upload, cutting) = (join(upload.join()), join(cutting.join()));
        received.context("receiving").and(upload).and(cutting)
    })?;
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more precision")]
    let rate = bytes as f64 / started_at.elapsed().as_secs_f64();
    Ok(rate)
}

/// Asks for an echo, sends bytes of the pattern, and ends the direction.
fn send_pattern(mut stream: &TcpStream, bytes: u64) -> Result<()> {
    stream.write_all(&0_u64.to_be_bytes())?;
    let block = pattern();
    let (mut left, mut at) = (bytes, 0);
    while left > 0 {
        let count = usize::try_from(left)?.min(BUFFER_BYTES);
        stream.write_all(&block[at..at + count])?;
        left -= count as u64;
        at = (at + count) % PERIOD;
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(())
}

/// Receives what an echo returns, until its end.
fn receive_pattern(mut stream: &TcpStream, bytes: u64, progress: &AtomicU64) -> Result<()> {
    stream.read_exact(&mut [0])?;
    let expected = pattern();
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut received, mut at) = (0, 0);
    while let read @ 1.. = stream.read(&mut buffer)? {
        ensure!(buffer[..read] == expected[at..at + read], "bytes differ");
        at = (at + read) % PERIOD;
        received += read as u64;
        progress.store(received, Ordering::Relaxed);
    }
    ensure!(received == bytes, "{received} bytes instead of {bytes}");
    Ok(())
}

/// Measures how long after a command listens on a port `run --tunnel auto` prints its URL.
pub(super) fn measure_detection(
    plan: &BenchPlan,
    program: &Path,
    url: &str,
    samples: &mut Vec<f64>,
) -> Result<()> {
    for number in 0..plan.detected_ports {
        let delay = PHASE * number;
        let mut command = isolated_command(program);
        command
            .args(["run", "--env", url, "--tunnel", "auto", "--"])
            .arg(std::env::current_exe()?)
            .args(["listen", &delay.as_millis().to_string()])
            .stdin(Stdio::piped());
        let mut run = OpenCommand::start(&mut command)?;
        // The program prints the line when it listens.
        let listens = run.stdout_line()?;
        ensure!(listens == "listening", "unexpected line `{listens}`");
        let since = Instant::now();
        let notice = run.stderr_line()?;
        ensure!(notice.contains(" is at http://"), "no URL: `{notice}`");
        samples.push(since.elapsed().as_secs_f64());
        run.end_stdin()?;
    }
    Ok(())
}

/// `exec-server tunnel` to a port behind a hub.
struct PortForward {
    _command: OpenCommand,
    address: SocketAddr,
}

impl PortForward {
    fn start(
        program: &Path,
        dir: &BenchDir,
        registry: &str,
        hub: &HubProcess,
        port: u16,
    ) -> Result<Self> {
        let home = dir.directory("home")?;
        let token = "EXEC_BENCH_TOKEN";
        let add = ["env", "add", ENVIRONMENT, "--hub", registry];
        let output = isolated_command(program)
            .args(add)
            .args(["--token-env", token])
            .env("HOME", &home)
            .env(token, hub.token())
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot add the hub: {text}");
        let mut command = isolated_command(program);
        command
            .args(["tunnel", "--json", "--env", ENVIRONMENT])
            .arg(format!("0:localhost:{port}"))
            .env("HOME", &home)
            .env(token, hub.token());
        let mut command = OpenCommand::start(&mut command)?;
        let line: Value = serde_json::from_str(&command.stdout_line()?)?;
        let ip: IpAddr = line["address"].as_str().context("no address")?.parse()?;
        let port = u16::try_from(line["port"].as_u64().context("no port")?)?;
        Ok(Self {
            _command: command,
            address: SocketAddr::new(ip, port),
        })
    }
}

/// A command that runs until it is dropped, which kills it.
struct OpenCommand {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl OpenCommand {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(Self {
            stdout: BufReader::new(child.stdout.take().context("no stdout")?),
            stderr: BufReader::new(child.stderr.take().context("no stderr")?),
            child,
        })
    }

    fn stdout_line(&mut self) -> Result<String> {
        let mut line = String::new();
        // A command that fails ends, which ends the read as well.
        if self.stdout.read_line(&mut line)? == 0 {
            let mut text = String::new();
            self.stderr.read_to_string(&mut text)?;
            return Err(anyhow!("no line: {text}"));
        }
        Ok(line.trim_end().to_owned())
    }

    /// Ends stdin, and waits until the command exits.
    fn end_stdin(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "{status}");
        Ok(())
    }

    fn stderr_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stderr.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for OpenCommand {
    fn drop(&mut self) {
        // It may already have exited.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

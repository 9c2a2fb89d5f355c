//! Measures a hub: memory of idle connections, many at once, frames per second.
//!
//! Run with `cargo run --release -p exec-hub --example load [PAIRS]`. The hub runs in its own
//! process, so that its memory can be measured; the clients do as little as possible, so that the
//! time is the hub's.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement: what fails ends it, and it prints what it finds"
)]

use std::{
    env,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use exec_hub::{
    config::HubConfig,
    hub::Hub,
    principal::{EnvironmentGlobs, RoleSet},
    store::Timestamp,
    tokens::{self, NewToken},
};
use exec_registry::{
    api::RegistryEnvironmentId,
    credentials::{FixedCredentials, RegistryToken},
    http::{BaseUrl, HttpClient},
    registry::RegistryClient,
};
use exec_relay::{
    frame::{FrameBody, RelayFrame, SealedRecord, StreamId},
    identity::NoiseIdentity,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().build().unwrap();
    match arguments.first().map(String::as_str) {
        Some("hub") => runtime.block_on(serve(Path::new(&arguments[1]))),
        pairs => {
            let pairs = pairs.map_or(1000, |pairs| pairs.parse().unwrap());
            runtime.block_on(measure(pairs));
        }
    }
}

/// Runs the process that is measured.
async fn serve(directory: &Path) {
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let hub = Hub::start(HubConfig::new(anywhere, directory))
        .await
        .unwrap();
    println!("{}", hub.url());
    std::future::pending().await
}

async fn measure(pairs: usize) {
    let directory = tempfile::tempdir().unwrap();
    let token = make_token(directory.path());
    let hub = Process::start(directory.path());
    let base = BaseUrl::parse(&hub.url).unwrap();
    let token = FixedCredentials::registry_token(&RegistryToken::new(&token).unwrap());
    let registry =
        RegistryClient::new(base, Arc::new(token), HttpClient::without_tls().unwrap()).unwrap();
    // Once before measuring, so that one-time allocations do not count.
    open_pairs(&registry, "warm-up", 1).await;
    let idle = hub.resident_kib();
    let started_at = Instant::now();
    let opened = open_pairs(&registry, "env", pairs).await;
    let took = started_at.elapsed();
    let resident = hub.resident_kib();
    let each = resident.saturating_sub(idle) as f64 / (2 * pairs) as f64;
    println!("{pairs} executors and {pairs} harnesses connected in {took:.1?}");
    println!("memory: {idle} KiB empty, {resident} KiB idle, {each:.1} KiB per connection");
    let mut opened = echo_all(opened).await;
    let used = hub.resident_kib();
    println!("memory after every pair was used: {used} KiB");
    opened.truncate(4);
    for size in [100, 1000, 61_440] {
        let (frames, seconds);
        (opened, frames, seconds) = flood(opened, size).await;
        let rate = frames as f64 / seconds;
        let bytes = rate * size as f64 / 1e6;
        println!("{size:>6} byte payloads: {rate:>9.0} frames/s, {bytes:>7.1} MB/s");
    }
}

fn make_token(directory: &Path) -> String {
    let new = NewToken {
        principal: "load".parse().unwrap(),
        roles: RoleSet::default(),
        environments: EnvironmentGlobs::default(),
        expires_at: None,
    };
    let file = HubConfig::default_token_file(directory);
    let (_, token) = tokens::create(&file, new, Timestamp::now()).unwrap();
    token.expose().to_owned()
}

/// The hub's process.
struct Process {
    child: Child,
    url: String,
}

impl Process {
    fn start(directory: &Path) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .arg("hub")
            .arg(directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut url).unwrap();
        Self {
            child,
            url: url.trim().to_owned(),
        }
    }

    fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        line.unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// An executor and its harness.
struct Pair {
    executor: TcpStream,
    harness: TcpStream,
}

async fn open_pairs(registry: &RegistryClient, name: &str, count: usize) -> Vec<Pair> {
    let identity = Arc::new(NoiseIdentity::generate());
    let mut opening = JoinSet::new();
    let mut opened = Vec::new();
    for number in 0..count {
        let (registry, identity) = (registry.clone(), Arc::clone(&identity));
        let environment = RegistryEnvironmentId::new(&format!("{name}-{number}")).unwrap();
        opening.spawn(async move { open_pair(&registry, &environment, &identity).await });
        if opening.len() >= 32 {
            opened.push(opening.join_next().await.unwrap().unwrap());
        }
    }
    opened.extend(opening.join_all().await);
    opened
}

async fn open_pair(
    registry: &RegistryClient,
    environment: &RegistryEnvironmentId,
    identity: &NoiseIdentity,
) -> Pair {
    let key = identity.public_key();
    let registered = registry.register(environment, key).await.unwrap();
    let executor = upgrade(registered.url.expose()).await;
    // The executor's task attaches the websocket after the upgrade.
    let connected = loop {
        match registry.connect(environment, key).await {
            Ok(connected) => break connected,
            Err(error) => assert!(error.may_connect_again(), "{error}"),
        }
    };
    let mut pair = Pair {
        executor,
        harness: upgrade(connected.url.expose()).await,
    };
    let resume = FrameBody::Resume { next_seq: 0 };
    pair.harness
        .write_all(&message(resume, Mask::Zero))
        .await
        .unwrap();
    let expected = message(FrameBody::Resume { next_seq: 0 }, Mask::None);
    let mut received = vec![0; expected.len()];
    pair.executor.read_exact(&mut received).await.unwrap();
    assert_eq!(received, expected);
    pair
}

async fn upgrade(url: &str) -> TcpStream {
    let rest = url.strip_prefix("ws://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let request = format!(
        "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(
        head.starts_with(b"HTTP/1.1 101 "),
        "{}",
        String::from_utf8_lossy(&head)
    );
    stream
}

#[derive(Clone, Copy)]
enum Mask {
    None,
    Zero,
}

const STREAM: &str = "0b0c8e0e-8a3c-4c53-9f0f-6f2a3b1c4d5e";

/// Encodes a frame of the only stream as a websocket message.
fn message(body: FrameBody, mask: Mask) -> Vec<u8> {
    let frame = RelayFrame::new(StreamId::new(STREAM).unwrap(), body).encode();
    let masked = match mask {
        Mask::None => 0,
        Mask::Zero => 0x80,
    };
    let mut message = vec![0x82];
    match u16::try_from(frame.len()).unwrap() {
        short @ 0..126 => message.push(masked | u8::try_from(short).unwrap()),
        long => {
            message.push(masked | 126);
            message.extend_from_slice(&long.to_be_bytes());
        }
    }
    if masked != 0 {
        message.extend_from_slice(&[0; 4]);
    }
    message.extend_from_slice(&frame);
    message
}

fn data(size: usize, mask: Mask) -> Vec<u8> {
    let data = SealedRecord {
        seq: 1,
        segment_index: 0,
        segment_count: 1,
        payload: vec![b'x'; size].into(),
    };
    message(FrameBody::Data(data), mask)
}

/// Every pair echoes one frame, all at once.
async fn echo_all(pairs: Vec<Pair>) -> Vec<Pair> {
    let (masked, unmasked) = (data(100, Mask::Zero), data(100, Mask::None));
    let mut running = JoinSet::new();
    let count = pairs.len();
    let started_at = Instant::now();
    for mut pair in pairs {
        let (masked, mut buffer) = (masked.clone(), vec![0; unmasked.len()]);
        running.spawn(async move {
            let started_at = Instant::now();
            pair.harness.write_all(&masked).await.unwrap();
            pair.executor.read_exact(&mut buffer).await.unwrap();
            pair.executor.write_all(&masked).await.unwrap();
            pair.harness.read_exact(&mut buffer).await.unwrap();
            (pair, started_at.elapsed())
        });
    }
    let finished = timeout(Duration::from_secs(60), running.join_all())
        .await
        .unwrap();
    let took = started_at.elapsed();
    let (pairs, mut times): (Vec<_>, Vec<_>) = finished.into_iter().unzip();
    times.sort();
    let (p50, p99) = (times[count / 2], times[count * 99 / 100]);
    println!("all {count} pairs echoed in {took:.1?}; p50 {p50:.1?}, p99 {p99:.1?}");
    pairs
}

/// Executors send as fast as their harnesses read, for a while.
async fn flood(pairs: Vec<Pair>, size: usize) -> (Vec<Pair>, u64, f64) {
    const BATCH: usize = 256 << 10;
    let frame = data(size, Mask::Zero);
    let frames_per_batch = (BATCH / frame.len()).max(1);
    let arrived = data(size, Mask::None).len();
    let mut running = JoinSet::new();
    let started_at = Instant::now();
    let count = pairs.len();
    for pair in pairs {
        let batch = frame.repeat(frames_per_batch);
        running.spawn(async move {
            let (mut executor, mut harness) = (pair.executor, pair.harness);
            let sending = async {
                let mut frames = 0;
                while started_at.elapsed() < Duration::from_secs(3) {
                    executor.write_all(&batch).await.unwrap();
                    frames += frames_per_batch;
                }
                // Reports to the other half how much to wait for.
                frames
            };
            let (total, target) = tokio::sync::watch::channel(None);
            let sending = async {
                total.send(Some(sending.await)).unwrap();
            };
            let receiving = async {
                let mut buffer = vec![0; 1 << 20];
                let mut bytes = 0;
                loop {
                    if let Some(frames) = *target.borrow()
                        && bytes == frames * arrived
                    {
                        return frames;
                    }
                    let mut target_changes = target.clone();
                    let read = tokio::select! {
                        read = harness.read(&mut buffer) => read.unwrap(),
                        _ = target_changes.changed() => continue,
                    };
                    assert_ne!(read, 0, "the hub closed the connection");
                    bytes += read;
                }
            };
            let ((), frames) = tokio::join!(sending, receiving);
            (Pair { executor, harness }, frames as u64)
        });
    }
    let finished = timeout(Duration::from_secs(60), running.join_all())
        .await
        .unwrap();
    let seconds = started_at.elapsed().as_secs_f64();
    let (pairs, frames): (Vec<_>, Vec<_>) = finished.into_iter().unzip();
    assert_eq!(pairs.len(), count);
    (pairs, frames.iter().sum(), seconds)
}

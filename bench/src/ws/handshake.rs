//! The opening handshake (RFC 6455 section 4.1), as far as a measuring client needs it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

/// Longest wait for anything a server should send: a bound, not a tuning knob.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Most bytes of an HTTP response head.
const MAX_HEAD: usize = 16 * 1024;

/// Connects and upgrades. Every later read or write on the stream is bounded in time.
pub(crate) fn open(url: &str) -> Result<TcpStream> {
    let (authority, path) = split(url)?;
    let addr = resolve(authority)?;
    let mut stream = TcpStream::connect_timeout(&addr, RESPONSE_TIMEOUT)
        .with_context(|| format!("cannot connect to {addr}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
    // The key proves nothing against a server that we mean to talk to; it may be fixed.
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {authority}\r\nUpgrade: websocket\r\n\
         Connection: Upgrade\r\nSec-WebSocket-Key: ZXhlYy1iZW5jaC1rZXkhIQ==\r\n\
         Sec-WebSocket-Version: 13\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut head = Vec::new();
    let mut byte = [0];
    // Byte by byte: nothing of the first frame may be swallowed.
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(head.len() < MAX_HEAD, "endless response head");
        ensure!(
            stream.read(&mut byte)? == 1,
            "connection closed during the handshake"
        );
        head.extend_from_slice(&byte);
    }
    if !head.starts_with(b"HTTP/1.1 101") {
        let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
        bail!("upgrade refused: {}", String::from_utf8_lossy(line));
    }
    Ok(stream)
}

fn split(url: &str) -> Result<(&str, &str)> {
    let rest = url
        .strip_prefix("ws://")
        .with_context(|| format!("`{url}` is not ws://"))?;
    Ok(rest.find('/').map_or((rest, "/"), |at| rest.split_at(at)))
}

fn resolve(authority: &str) -> Result<SocketAddr> {
    let mut addrs = authority
        .to_socket_addrs()
        .with_context(|| format!("`{authority}`"))?;
    addrs
        .next()
        .with_context(|| format!("`{authority}` has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_split_into_authority_and_path() {
        assert_eq!(split("ws://127.0.0.1:80").unwrap(), ("127.0.0.1:80", "/"));
        assert_eq!(split("ws://h:1/a?b").unwrap(), ("h:1", "/a?b"));
        assert!(split("wss://h:1").is_err());
    }
}

//! A small blocking websocket client: one TCP stream, one large reusable buffer, no extensions.
//!
//! Its cost is part of every number, so it reads large blocks and returns messages in place,
//! without copying. JSON-RPC is in `rpc_client`; TLS and the server side are not implemented.

mod frame_header;

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use frame_header::{MAX_PAYLOAD, Opcode, WsFrameHeader, encode_frame};

/// Size of the read buffer, also used by the copy floor.
pub(crate) const READ_BUFFER: usize = 512 * 1024;

/// A blocking websocket connection.
#[derive(Debug)]
pub(crate) struct WebSocket {
    tcp: TcpStream,
    buffer: Vec<u8>,
    /// Range of `buffer` that was received and not yet returned.
    unread: Range<usize>,
    /// Buffer for a fragmented message; it may be longer than the message.
    fragments: Vec<u8>,
    /// Bytes of the message in `fragments` so far.
    message_len: usize,
    in_message: bool,
    /// Incomplete frame of that message. The remaining bytes are read directly into `fragments`.
    pending: Option<PendingFragment>,
    /// Queued frames.
    send_queue: Vec<u8>,
}

impl WebSocket {
    /// Connects to a `ws://` address.
    pub(crate) fn connect(url: &str) -> Result<Self> {
        Ok(Self::from_stream(open_stream(url)?, READ_BUFFER))
    }

    fn from_stream(tcp: TcpStream, buffer: usize) -> Self {
        Self {
            tcp,
            buffer: vec![0; buffer],
            unread: 0..0,
            fragments: Vec::new(),
            message_len: 0,
            in_message: false,
            pending: None,
            send_queue: Vec::new(),
        }
    }

    /// Queues a text message. [`Self::flush`] sends all queued messages with one write.
    pub(crate) fn queue(&mut self, text: &[u8]) {
        self.queue_text(&[text]);
    }

    /// Queues a text message that consists of `parts`.
    pub(crate) fn queue_text(&mut self, parts: &[&[u8]]) {
        encode_frame(&mut self.send_queue, Opcode::Text, parts);
    }

    /// Queues a binary message that consists of `parts`.
    pub(crate) fn queue_binary(&mut self, parts: &[&[u8]]) {
        encode_frame(&mut self.send_queue, Opcode::Binary, parts);
    }

    /// Sends the queued messages.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.tcp
            .write_all(&self.send_queue)
            .context("cannot send")?;
        self.send_queue.clear();
        Ok(())
    }

    /// Waits for the next text or binary message; the payload shows which it is.
    pub(crate) fn next_message(&mut self) -> Result<&[u8]> {
        self.next_matching(|_| Ok(true))
    }

    /// Waits for the next message that matches `predicate` and skips others.
    pub(crate) fn next_matching(
        &mut self,
        predicate: impl Fn(&[u8]) -> Result<bool>,
    ) -> Result<&[u8]> {
        let location = loop {
            match self.take_message()? {
                Some(location) if predicate(self.message_at(&location))? => break location,
                Some(_) => {}
                None => self.fill()?,
            }
        };
        Ok(self.message_at(&location))
    }

    /// Waits for the next message for at most `limit`.
    pub(crate) fn message_within(&mut self, limit: Duration) -> Result<Option<&[u8]>> {
        let deadline = Instant::now() + limit;
        let location = loop {
            if let Some(location) = self.take_message()? {
                break Some(location);
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                break None;
            }
            self.tcp.set_read_timeout(Some(remaining))?;
            match self.fill() {
                Err(error) if is_timeout(&error) => break None,
                outcome => outcome?,
            }
        };
        self.tcp.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        Ok(location.map(|location| self.message_at(&location)))
    }

    /// Returns the next message if it has arrived completely. Never blocks.
    pub(crate) fn buffered_message(&mut self) -> Result<Option<&[u8]>> {
        let location = self.take_message()?;
        Ok(location.map(|location| self.message_at(&location)))
    }

    fn message_at(&self, location: &MessageLocation) -> &[u8] {
        match location {
            MessageLocation::Buffer(range) => &self.buffer[range.clone()],
            MessageLocation::Fragments => &self.fragments[..self.message_len],
        }
    }

    /// Takes the next complete message out of the buffer and answers pings before it.
    fn take_message(&mut self) -> Result<Option<MessageLocation>> {
        if let Some(pending) = self.pending {
            if pending.remaining > 0 {
                return Ok(None);
            }
            self.pending = None;
            if self.end_fragment(pending.fin) {
                return Ok(Some(MessageLocation::Fragments));
            }
        }
        loop {
            let Some(header) = WsFrameHeader::parse(&self.buffer[self.unread.clone()])? else {
                return Ok(None);
            };
            let size = header.len + header.payload;
            let is_complete = self.unread.len() >= size;
            let is_fragment = match header.opcode {
                Opcode::Text | Opcode::Binary => !header.fin,
                Opcode::Continuation => true,
                Opcode::Close | Opcode::Ping | Opcode::Pong => false,
            };
            if !is_complete && !is_fragment {
                return Ok(None);
            }
            let end = self.unread.end.min(self.unread.start + size);
            let payload = self.unread.start + header.len..end;
            self.unread.start = end;
            match header.opcode {
                Opcode::Text | Opcode::Binary if header.fin => {
                    ensure!(!self.in_message, "message inside a message");
                    return Ok(Some(MessageLocation::Buffer(payload)));
                }
                Opcode::Text | Opcode::Binary | Opcode::Continuation => {
                    self.begin_fragment(header, payload)?;
                    if !is_complete {
                        return Ok(None);
                    }
                    if self.end_fragment(header.fin) {
                        return Ok(Some(MessageLocation::Fragments));
                    }
                }
                Opcode::Ping => {
                    encode_frame(&mut self.send_queue, Opcode::Pong, &[&self.buffer[payload]]);
                    self.flush()?;
                }
                Opcode::Pong => {}
                Opcode::Close => bail!("server closed the connection"),
            }
        }
    }

    /// Appends the received part of a fragment. `payload` is its range in `buffer`.
    fn begin_fragment(&mut self, header: WsFrameHeader, payload: Range<usize>) -> Result<()> {
        if header.opcode == Opcode::Continuation {
            ensure!(self.in_message, "continuation of nothing");
        } else {
            ensure!(!self.in_message, "message inside a message");
            self.in_message = true;
            self.message_len = 0;
        }
        let total = self.message_len + header.payload;
        ensure!(total <= MAX_PAYLOAD, "message of {total} bytes");
        if self.fragments.len() < total {
            self.fragments.resize(total, 0);
        }
        let (len, begin) = (payload.len(), self.message_len);
        self.fragments[begin..begin + len].copy_from_slice(&self.buffer[payload]);
        self.message_len += len;
        self.pending = (len < header.payload).then_some(PendingFragment {
            remaining: header.payload - len,
            fin: header.fin,
        });
        Ok(())
    }

    /// Records that a fragment is complete, and returns whether the message is.
    fn end_fragment(&mut self, fin: bool) -> bool {
        self.in_message = !fin;
        fin
    }

    /// Reads more, after making space for at least the remainder of the current frame.
    fn fill(&mut self) -> Result<()> {
        if let Some(pending) = &mut self.pending {
            let location = self.message_len..self.message_len + pending.remaining;
            let read = receive(&mut self.tcp, &mut self.fragments[location])?;
            self.message_len += read;
            pending.remaining -= read;
            return Ok(());
        }
        let needed = match WsFrameHeader::parse(&self.buffer[self.unread.clone()])? {
            Some(header) => header.len + header.payload,
            None => 16,
        };
        if self.unread.is_empty() {
            self.unread = 0..0;
        } else if self.unread.start > 0
            && (self.unread.start + needed > self.buffer.len()
                || self.unread.end > self.buffer.len() / 4 * 3)
        {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        if needed > self.buffer.len() {
            self.buffer.resize(needed, 0);
        }
        self.unread.end += receive(&mut self.tcp, &mut self.buffer[self.unread.end..])?;
        Ok(())
    }
}

fn receive(tcp: &mut TcpStream, location: &mut [u8]) -> Result<usize> {
    let read = tcp.read(location).context("cannot receive")?;
    ensure!(read > 0, "server ended the connection");
    Ok(read)
}

fn is_timeout(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(
        kind,
        Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
    )
}

/// A fragment that has not arrived completely.
#[derive(Clone, Copy, Debug)]
struct PendingFragment {
    remaining: usize,
    /// Whether the message ends with this fragment.
    fin: bool,
}

/// Location of a message, valid until the next read.
#[derive(Debug)]
enum MessageLocation {
    Buffer(Range<usize>),
    Fragments,
}

/// Longest wait for anything a server should send.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Largest HTTP response head in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Connects and performs the opening handshake (RFC 6455 section 4.1). Reads and writes on the
/// stream have a timeout.
pub(crate) fn open_stream(url: &str) -> Result<TcpStream> {
    let (authority, path) = split_url(url)?;
    let addr = resolve_address(authority)?;
    let mut stream = TcpStream::connect_timeout(&addr, RESPONSE_TIMEOUT)
        .with_context(|| format!("cannot connect to {addr}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
    // A fixed key is sufficient: it only detects servers that do not speak websocket.
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {authority}\r\nUpgrade: websocket\r\n\
         Connection: Upgrade\r\nSec-WebSocket-Key: ZXhlYy1iZW5jaC1rZXkhIQ==\r\n\
         Sec-WebSocket-Version: 13\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut head = Vec::new();
    let mut byte = [0];
    // Byte by byte, so that no part of the first frame is consumed.
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

fn split_url(url: &str) -> Result<(&str, &str)> {
    let rest = url
        .strip_prefix("ws://")
        .with_context(|| format!("`{url}` is not ws://"))?;
    Ok(rest.find('/').map_or((rest, "/"), |at| rest.split_at(at)))
}

fn resolve_address(authority: &str) -> Result<SocketAddr> {
    let mut addrs = authority
        .to_socket_addrs()
        .with_context(|| format!("`{authority}`"))?;
    addrs
        .next()
        .with_context(|| format!("`{authority}` has no address"))
}

/// Encodes a text message, for callers that write to a stream directly.
pub(crate) fn encode_text(text: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_frame(&mut frame, Opcode::Text, &[text]);
    frame
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Sends `bytes` to a client in chunks of `step`, and returns the messages it received.
    fn replay(bytes: &[u8], step: usize, messages: usize) -> Vec<Vec<u8>> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut socket = WebSocket::from_stream(tcp, 64);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                bytes
                    .chunks(step)
                    .for_each(|piece| peer.write_all(piece).unwrap())
            });
            (0..messages)
                .map(|_| socket.next_message().unwrap().to_vec())
                .collect()
        })
    }

    #[test]
    fn messages_survive_any_split_and_may_exceed_the_buffer() {
        let mut bytes = vec![0x81, 2, b'a', b'b', 0x89, 0, 0x01, 1, b'c', 0x80, 1, b'd'];
        bytes.extend([0x82, 126, 0, 200]);
        bytes.extend([9; 200]);
        // A ping between two long fragments, and a short message after them.
        bytes.extend([0x02, 126, 0, 130]);
        bytes.extend([7; 130]);
        bytes.extend([0x89, 0, 0x80, 126, 0, 150]);
        bytes.extend([8; 150]);
        bytes.extend([0x81, 1, b'e']);
        let parts = [vec![7; 130], vec![8; 150]].concat();
        for step in [1, 3, 7, 150, 4096] {
            let seen = replay(&bytes, step, 5);
            assert_eq!(seen[..3], [b"ab".to_vec(), b"cd".to_vec(), vec![9; 200]]);
            assert_eq!(seen[3..], [parts.clone(), b"e".to_vec()]);
        }
    }

    #[test]
    fn timeout_is_distinguished_from_a_message() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut socket = WebSocket::from_stream(tcp, 64);
        let short = Duration::from_millis(1);
        assert_eq!(socket.message_within(short).unwrap(), None);
        peer.write_all(&[0x81, 1, b'a']).unwrap();
        let long = Duration::from_secs(20);
        assert_eq!(socket.message_within(long).unwrap(), Some(&b"a"[..]));
        drop(peer);
        assert!(socket.message_within(long).is_err());
    }

    #[test]
    fn url_is_split_into_authority_and_path() {
        assert_eq!(
            split_url("ws://127.0.0.1:80").unwrap(),
            ("127.0.0.1:80", "/")
        );
        assert_eq!(split_url("ws://h:1/a?b").unwrap(), ("h:1", "/a?b"));
        assert!(split_url("wss://h:1").is_err());
    }
}

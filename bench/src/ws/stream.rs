//! The message stream: reads in large pieces, hands messages out in place.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Range;

use anyhow::{Context as _, Result, bail, ensure};

use super::frame::{self, Header, MAX_PAYLOAD, Opcode};
use super::handshake;

/// Size of the read buffer; the copy floor reads with the same.
pub(crate) const READ_BUFFER: usize = 512 * 1024;

/// A blocking websocket connection.
#[derive(Debug)]
pub(crate) struct WebSocket {
    tcp: TcpStream,
    buffer: Vec<u8>,
    /// The part of `buffer` that was read and not yet handed out.
    filled: Range<usize>,
    /// A message that came in several frames; empty otherwise.
    fragments: Vec<u8>,
    assembling: bool,
    /// Frames queued and not yet sent.
    out: Vec<u8>,
}

impl WebSocket {
    /// Connects to a `ws://` address.
    pub(crate) fn connect(url: &str) -> Result<Self> {
        Ok(Self {
            tcp: handshake::open(url)?,
            buffer: vec![0; READ_BUFFER],
            filled: 0..0,
            fragments: Vec::new(),
            assembling: false,
            out: Vec::new(),
        })
    }

    /// Queues a text message; [`Self::flush`] sends all queued ones with one write.
    pub(crate) fn queue(&mut self, text: &[u8]) {
        frame::encode(&mut self.out, Opcode::Text, text);
    }

    /// Sends what is queued.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.tcp.write_all(&self.out).context("cannot send")?;
        self.out.clear();
        Ok(())
    }

    /// Waits for the next message; text or binary, its payload says which.
    pub(crate) fn next_message(&mut self) -> Result<&[u8]> {
        let place = loop {
            match self.take()? {
                Some(place) => break place,
                None => self.fill()?,
            }
        };
        Ok(self.at(place))
    }

    /// Returns the next message if it has arrived completely; never waits.
    pub(crate) fn buffered_message(&mut self) -> Result<Option<&[u8]>> {
        let place = self.take()?;
        Ok(place.map(|place| self.at(place)))
    }

    fn at(&self, place: Place) -> &[u8] {
        match place {
            Place::Buffer(range) => &self.buffer[range],
            Place::Fragments => &self.fragments,
        }
    }

    /// Takes the next whole message out of the buffer, answering pings on the way.
    fn take(&mut self) -> Result<Option<Place>> {
        loop {
            let Some(header) = Header::parse(&self.buffer[self.filled.clone()])? else {
                return Ok(None);
            };
            let size = header.len + header.payload;
            if self.filled.len() < size {
                return Ok(None);
            }
            let payload = self.filled.start + header.len..self.filled.start + size;
            self.filled.start += size;
            match header.opcode {
                Opcode::Text | Opcode::Binary => {
                    ensure!(!self.assembling, "message inside a message");
                    if header.fin {
                        return Ok(Some(Place::Buffer(payload)));
                    }
                    self.assembling = true;
                    self.fragments.clear();
                    self.fragments.extend_from_slice(&self.buffer[payload]);
                }
                Opcode::Continuation => {
                    ensure!(self.assembling, "continuation of nothing");
                    let total = self.fragments.len() + payload.len();
                    ensure!(total <= MAX_PAYLOAD, "message of {total} bytes");
                    self.fragments.extend_from_slice(&self.buffer[payload]);
                    if header.fin {
                        self.assembling = false;
                        return Ok(Some(Place::Fragments));
                    }
                }
                Opcode::Ping => {
                    frame::encode(&mut self.out, Opcode::Pong, &self.buffer[payload]);
                    self.flush()?;
                }
                Opcode::Pong => {}
                Opcode::Close => bail!("server closed the connection"),
            }
        }
    }

    /// Reads more, after making room for at least the rest of the frame that has begun.
    fn fill(&mut self) -> Result<()> {
        let needed = match Header::parse(&self.buffer[self.filled.clone()])? {
            Some(header) => header.len + header.payload,
            None => 16,
        };
        if self.filled.is_empty() {
            self.filled = 0..0;
        } else if self.filled.start + needed > self.buffer.len()
            || self.filled.end > self.buffer.len() / 4 * 3
        {
            self.buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        if needed > self.buffer.len() {
            self.buffer.resize(needed, 0);
        }
        let read = self
            .tcp
            .read(&mut self.buffer[self.filled.end..])
            .context("cannot receive")?;
        ensure!(read > 0, "server ended the connection");
        self.filled.end += read;
        Ok(())
    }
}

/// Where a message lies, until the next call that reads.
#[derive(Debug)]
enum Place {
    Buffer(Range<usize>),
    Fragments,
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Plays `bytes` to a client in pieces of `step`, and returns the messages it saw.
    fn replay(bytes: &[u8], step: usize, messages: usize) -> Vec<Vec<u8>> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut socket = WebSocket {
            tcp,
            buffer: vec![0; 64],
            filled: 0..0,
            fragments: Vec::new(),
            assembling: false,
            out: Vec::new(),
        };
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
        for step in [1, 3, 7, 4096] {
            let seen = replay(&bytes, step, 3);
            assert_eq!(seen, [b"ab".to_vec(), b"cd".to_vec(), vec![9; 200]]);
        }
    }
}

//! Newline-delimited JSON over a pair of byte streams, such as standard input and output.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use exec_wire::{base64_bytes::encode_append, limits, outgoing_message::OutgoingMessage};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::link::{
    BinarySupport, DataEncoding, Link, LinkReadError, LinkRole, MessageReader, MessageWriter,
};

/// Raw bytes encoded at a time: a multiple of three, so that base64 needs no padding between
/// blocks.
const BLOCK_BYTES: usize = 192 << 10;
/// Bytes requested by one read.
const READ_BYTES: usize = 16 << 10;

/// Makes a link of two byte streams.
pub fn link<R, W>(input: R, output: W, role: LinkRole, peer: &str) -> Link
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let reader = LineReader {
        input: Box::new(input),
        buffer: BytesMut::new(),
        searched: 0,
        at_eof: false,
        max_line_bytes: role.max_message_bytes(),
    };
    let writer = LineWriter {
        output: Some(Box::new(output)),
        buffer: Vec::new(),
        written: 0,
        queue: VecDeque::new(),
        queued_bytes: 0,
    };
    Link::new(reader, writer, peer.to_owned(), BinarySupport::TextOnly)
}

struct LineReader {
    input: Box<dyn AsyncRead + Send + Unpin>,
    buffer: BytesMut,
    searched: usize,
    at_eof: bool,
    /// Maximum length of a line.
    max_line_bytes: usize,
}

impl std::fmt::Debug for LineReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LineReader")
            .field("buffered", &self.buffer.len())
            .finish_non_exhaustive()
    }
}

impl LineReader {
    /// Takes the next complete line that is not blank, without its terminator.
    fn take_line(&mut self) -> Result<Option<Bytes>, LinkReadError> {
        loop {
            let newline = memchr::memchr(b'\n', &self.buffer[self.searched..]);
            let length = newline.map_or(self.buffer.len(), |index| self.searched + index);
            if length > self.max_line_bytes {
                return Err(LinkReadError::TooLong(self.max_line_bytes));
            }
            self.searched = length;
            let line = match newline {
                Some(_) => {
                    let line = self.buffer.split_to(length);
                    self.buffer.advance(1);
                    line
                }
                // The last line may lack a terminator.
                None if self.at_eof => self.buffer.split(),
                None => return Ok(None),
            };
            self.searched = 0;
            let line = line.freeze();
            let line = if line.ends_with(b"\r") {
                line.slice(..line.len() - 1)
            } else {
                line
            };
            if line.iter().any(|byte| !byte.is_ascii_whitespace()) {
                if std::str::from_utf8(&line).is_err() {
                    return Err(LinkReadError::Protocol("line is not UTF-8"));
                }
                return Ok(Some(line));
            }
            if self.at_eof && self.buffer.is_empty() {
                return Ok(None);
            }
        }
    }
}

impl MessageReader for LineReader {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, LinkReadError>> {
        loop {
            if let Some(line) = self.take_line()? {
                return Poll::Ready(Ok(Some(line)));
            }
            if self.at_eof {
                return Poll::Ready(Ok(None));
            }
            let mut space = [std::mem::MaybeUninit::uninit(); READ_BYTES];
            let mut read = ReadBuf::uninit(&mut space);
            ready!(Pin::new(&mut self.input).poll_read(cx, &mut read))?;
            self.at_eof = read.filled().is_empty();
            self.buffer.extend_from_slice(read.filled());
        }
    }
}

struct LineWriter {
    /// `None` once the link is closed: dropping a pipe is the only way to end it.
    output: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    buffer: Vec<u8>,
    written: usize,
    /// Parts that follow `buffer`. A large message is encoded block by block as it is written.
    queue: VecDeque<QueuedPart>,
    queued_bytes: usize,
}

enum QueuedPart {
    Text(Vec<u8>),
    Data(Bytes),
}

impl LineWriter {
    fn push_text(&mut self, text: Vec<u8>) {
        self.queued_bytes += text.len();
        self.queue.push_back(QueuedPart::Text(text));
    }

    /// Fills the empty buffer with the next part.
    fn refill(&mut self) {
        match self.queue.pop_front() {
            None => {}
            Some(QueuedPart::Text(text)) => {
                self.queued_bytes -= text.len();
                self.buffer = text;
            }
            Some(QueuedPart::Data(mut data)) => {
                let block = data.split_to(data.len().min(BLOCK_BYTES));
                self.queued_bytes -= block.len();
                encode_append(&block, &mut self.buffer);
                if !data.is_empty() {
                    self.queue.push_front(QueuedPart::Data(data));
                }
            }
        }
    }
}

impl std::fmt::Debug for LineWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LineWriter")
            .field("buffered", &self.buffered())
            .finish_non_exhaustive()
    }
}

impl MessageWriter for LineWriter {
    fn push(&mut self, message: OutgoingMessage, _: DataEncoding) {
        match message {
            OutgoingMessage::Data(message) if message.data_len() > BLOCK_BYTES => {
                let (prefix, data, mut suffix) = message.into_text_parts();
                suffix.push(b'\n');
                self.push_text(prefix);
                self.queued_bytes += data.len();
                self.queue.push_back(QueuedPart::Data(data));
                self.push_text(suffix);
            }
            message @ (OutgoingMessage::Text(_) | OutgoingMessage::Data(_)) => {
                if self.queue.is_empty() {
                    message.encode_text(&mut self.buffer);
                    self.buffer.push(b'\n');
                } else {
                    let mut text = Vec::with_capacity(message.text_len() + 1);
                    message.encode_text(&mut text);
                    text.push(b'\n');
                    self.push_text(text);
                }
            }
        }
    }

    fn buffered(&self) -> usize {
        self.buffer.len() - self.written + self.queued_bytes
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.written == self.buffer.len() {
                self.written = 0;
                self.buffer.clear();
                self.refill();
            }
            if self.buffer.is_empty() {
                break;
            }
            let output = self.output.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
            match ready!(Pin::new(output).poll_write(cx, &self.buffer[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        self.buffer.shrink_to(limits::SEND_BUFFER_BYTES);
        match &mut self.output {
            Some(output) => Pin::new(output).poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_keepalive(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        let at_eof = match &mut self.output {
            Some(output) => ready!(Pin::new(output).poll_shutdown(cx)),
            None => Ok(()),
        };
        self.output = None;
        Poll::Ready(at_eof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &'static [u8]) -> (Vec<Bytes>, Result<Option<Bytes>, LinkReadError>) {
        let mut link = link(input, tokio::io::sink(), LinkRole::Server, "test");
        let mut lines = Vec::new();
        loop {
            match link.reader.next().await {
                Ok(Some(line)) => lines.push(line),
                end => return (lines, end),
            }
        }
    }

    #[tokio::test]
    async fn lf_and_crlf_end_lines_and_blank_lines_are_skipped() {
        let (lines, end) = lines(b"{}\r\n\n  \n{\"a\":1}\n\r\n3").await;
        assert_eq!(lines, ["{}", "{\"a\":1}", "3"]);
        assert!(matches!(end, Ok(None)));
    }

    #[tokio::test]
    async fn large_message_is_sent_as_one_line() {
        let (near, far) = tokio::io::duplex(1000);
        let mut from = link(tokio::io::empty(), near, LinkRole::Server, "test");
        let mut to = link(far, tokio::io::sink(), LinkRole::Server, "test");
        let data = Bytes::from(vec![0x5a; (1 << 20) + 1]);
        let id = exec_wire::message::RequestId::Number(1);
        let large = || {
            OutgoingMessage::result(&id, &serde_json::json!({})).with_data("chunk", data.clone())
        };
        let small = || OutgoingMessage::notification("small", &());
        let messages = [small(), large(), large(), small(), small()];
        let texts = messages.clone().map(|message| {
            let mut text = Vec::new();
            message.encode_text(&mut text);
            Bytes::from(text)
        });
        let send = async {
            for message in messages {
                from.writer.push(message, DataEncoding::Text);
            }
            from.writer.flush().await.unwrap();
            assert_eq!(from.writer.buffered(), 0);
        };
        let receive = async {
            for text in texts {
                assert!(to.reader.next().await.unwrap() == Some(text));
            }
        };
        tokio::join!(send, receive);
    }

    #[tokio::test]
    async fn invalid_utf8_line_ends_the_link() {
        let (lines, end) = lines(b"{}\n\xff\n{}\n").await;
        assert_eq!(lines, ["{}"]);
        assert!(matches!(end, Err(LinkReadError::Protocol(_))));
    }

    #[tokio::test]
    async fn overlong_line_ends_the_link() {
        let mut link = link(
            tokio::io::repeat(b'x'),
            tokio::io::sink(),
            LinkRole::Server,
            "test",
        );
        let end = link.reader.next().await;
        assert!(matches!(
            end,
            Err(LinkReadError::TooLong(limits::MAX_MESSAGE_BYTES))
        ));
    }
}

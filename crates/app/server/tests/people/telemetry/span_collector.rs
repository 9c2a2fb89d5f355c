//! Collector of spans: accepts requests and decodes as much as tests need.

use std::sync::Arc;

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::test_user::within_timeout;

/// Collector on this machine. Received spans outlive it.
pub(super) struct Collector {
    pub(super) url: String,
    spans: Arc<watch::Sender<Vec<Span>>>,
    task: tokio::task::JoinHandle<()>,
}

/// Exported span.
#[derive(Clone, Debug, Default)]
pub(super) struct Span {
    pub(super) trace: Vec<u8>,
    pub(super) id: Vec<u8>,
    pub(super) parent: Vec<u8>,
    pub(super) name: String,
    /// Everything else, not decoded: tests search it for attributes.
    pub(super) rest: Vec<u8>,
    /// Resource of the exporter.
    pub(super) resource: Vec<u8>,
}

impl Span {
    /// Returns whether the attributes contain the text.
    pub(super) fn mentions(&self, text: &str) -> bool {
        has(&self.rest, text)
    }

    pub(super) fn comes_from(&self, text: &str) -> bool {
        has(&self.resource, text)
    }
}

fn has(bytes: &[u8], text: &str) -> bool {
    let text = text.as_bytes();
    bytes.windows(text.len()).any(|part| part == text)
}

impl Collector {
    pub(super) async fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let spans = Arc::new(watch::Sender::new(Vec::new()));
        let retained = Arc::clone(&spans);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, Arc::clone(&retained)));
            }
        });
        Self { url, spans, task }
    }

    pub(super) fn spans(&self) -> Vec<Span> {
        self.spans.borrow().clone()
    }

    /// Waits for a span of this name that contains `what`.
    pub(super) async fn until(&self, name: &str, what: &str) -> Span {
        let is_it = |span: &&Span| span.name == name && span.mentions(what);
        let mut spans = self.spans.subscribe();
        let come = spans.wait_for(|spans| spans.iter().any(|span| is_it(&span)));
        let come = within_timeout(come).await.unwrap();
        come.iter().find(is_it).unwrap().clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream, spans: Arc<watch::Sender<Vec<Span>>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let head = head.to_ascii_lowercase();
        assert!(head.starts_with("post /v1/traces "), "{head}");
        assert!(
            head.contains("content-type: application/x-protobuf"),
            "{head}"
        );
        let length = head.split("content-length: ").nth(1).unwrap();
        let length = length.split("\r\n").next().unwrap().parse().unwrap();
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.unwrap();
        spans.send_modify(|spans| spans.extend(decode(&body)));
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer).await.unwrap();
    }
}

/// Decodes an `ExportTraceServiceRequest`: resource spans contain scope spans, which contain spans.
fn decode(body: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    for (_, of_resource) in fields(body).filter(|(number, _)| *number == 1) {
        let resource = fields(of_resource).find(|(number, _)| *number == 1);
        let resource = resource.map(|(_, resource)| resource.to_vec());
        for (_, of_scope) in fields(of_resource).filter(|(number, _)| *number == 2) {
            for (_, encoded) in fields(of_scope).filter(|(number, _)| *number == 2) {
                let mut span = Span {
                    resource: resource.clone().unwrap_or_default(),
                    ..Span::default()
                };
                for (number, value) in fields(encoded) {
                    match number {
                        1 => span.trace = value.to_vec(),
                        2 => span.id = value.to_vec(),
                        4 => span.parent = value.to_vec(),
                        5 => span.name = String::from_utf8(value.to_vec()).unwrap(),
                        _ => span.rest.extend_from_slice(value),
                    }
                }
                spans.push(span);
            }
        }
    }
    spans
}

/// Returns the length-delimited fields of a message, by number.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = match key & 7 {
            0 => {
                varint(&mut message);
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut message)).unwrap(),
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (value, rest) = message.split_at(length);
        if key & 7 == 2 {
            found.push((key >> 3, value));
        }
        message = rest;
    }
    found.into_iter()
}

fn varint(message: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first().unwrap();
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

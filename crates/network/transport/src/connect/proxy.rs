//! HTTP proxies that open tunnels (`CONNECT`, RFC 9110 section 9.3.6).
//! Invariant: parsing is pure; no text contains the password.

use std::{fmt, str::FromStr};

use base64_simd::STANDARD;
use http::Uri;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::ConnectError;

/// Maximum length of the head of a proxy's response.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum number of headers in a response.
const MAX_HEADERS: usize = 64;

/// An HTTP proxy: `http://[USER:PASSWORD@]HOST[:PORT]`.
#[derive(Clone, Eq, PartialEq)]
pub struct HttpProxy {
    /// Host and port in URL form.
    authority: String,
    /// The value of `Proxy-Authorization`.
    authorization: Option<String>,
}

impl HttpProxy {
    /// Opens a tunnel to a host and port.
    pub(super) async fn dial(&self, to: &str) -> Result<TcpStream, ConnectError> {
        let unreachable = |source| ConnectError::Unreachable {
            peer: format!("proxy {}", self.authority),
            source,
        };
        let mut stream = TcpStream::connect(&self.authority)
            .await
            .map_err(unreachable)?;
        stream.set_nodelay(true)?;
        let mut request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
        if let Some(authorization) = &self.authorization {
            request.push_str("Proxy-Authorization: ");
            request.push_str(authorization);
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await?;
        read_response(&mut stream).await?;
        Ok(stream)
    }
}

/// Reads the head of a response and not a byte more: the following bytes belong to the tunnel.
async fn read_response(stream: &mut TcpStream) -> Result<(), ConnectError> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD_BYTES {
            return Err(ConnectError::NotProxy("its response is too long"));
        }
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return Err(ConnectError::NotProxy("it closed the connection")),
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    match (response.parse(&head), response.code) {
        (Ok(httparse::Status::Complete(_)), Some(200..=299)) => Ok(()),
        (Ok(httparse::Status::Complete(_)), Some(status)) => {
            Err(ConnectError::ProxyRefused { status })
        }
        (Ok(_) | Err(_), _) => Err(ConnectError::NotProxy("its response is not HTTP")),
    }
}

impl FromStr for HttpProxy {
    type Err = HttpProxyError;

    fn from_str(url: &str) -> Result<Self, HttpProxyError> {
        let uri: Uri = url.trim().parse().map_err(|_| HttpProxyError::Malformed)?;
        if uri.scheme_str().is_some_and(|scheme| scheme != "http") {
            return Err(HttpProxyError::Scheme);
        }
        let authority = uri.authority().ok_or(HttpProxyError::Malformed)?.as_str();
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let has_port = host
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        let authorization = user
            .map(|user| percent_decode(user).ok_or(HttpProxyError::Malformed))
            .transpose()?
            .map(|user| format!("Basic {}", STANDARD.encode_to_string(user)));
        Ok(Self {
            authority,
            authorization,
        })
    }
}

/// Decodes percent-encoding.
fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        decoded.push(u8::try_from(high << 4 | low).ok()?);
    }
    Some(decoded)
}

impl fmt::Debug for HttpProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({})", self.authority)
    }
}

/// Caller: the text is not a proxy URL. The error omits it, because it may contain a password.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpProxyError {
    /// The scheme is not `http`.
    #[error("only http:// proxies are supported")]
    Scheme,
    /// The text is not a URL with a host.
    #[error("expected http://HOST:PORT")]
    Malformed,
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn proxy_urls_are_parsed_and_debug_hides_passwords() {
        let proxy: HttpProxy = "http://me:s%40cret@p.test:3128".parse().unwrap();
        assert_eq!(proxy.authority, "p.test:3128");
        assert_eq!(proxy.authorization.as_deref(), Some("Basic bWU6c0BjcmV0"));
        assert_eq!(format!("{proxy:?}"), "Proxy(p.test:3128)");
        let plain: HttpProxy = "p.test:1".parse().unwrap();
        assert_eq!(plain.authority, "p.test:1");
        let short: HttpProxy = "http://[::1]/".parse().unwrap();
        assert_eq!(short.authority, "[::1]:80");
        assert_eq!(
            "socks5://p:1".parse::<HttpProxy>(),
            Err(HttpProxyError::Scheme)
        );
        assert_eq!(
            "http://".parse::<HttpProxy>(),
            Err(HttpProxyError::Malformed)
        );
        assert_eq!(
            "http://a%zz@p".parse::<HttpProxy>(),
            Err(HttpProxyError::Malformed)
        );
    }

    /// Starts a proxy that sends `answer` to one request, and returns that request.
    async fn proxy_with_response(
        answer: &'static str,
    ) -> (HttpProxy, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://u:p@{}", listener.local_addr().unwrap());
        let request = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut request).await.unwrap();
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(request).unwrap()
        });
        (url.parse().unwrap(), request)
    }

    #[tokio::test]
    async fn connect_request_consumes_no_tunnel_bytes() {
        let (proxy, request) = proxy_with_response("HTTP/1.1 200 OK\r\nX: y\r\n\r\nfirst").await;
        let mut stream = proxy.dial("h.test:443").await.unwrap();
        let mut first = String::new();
        stream.read_to_string(&mut first).await.unwrap();
        assert_eq!(first, "first");
        let request = request.await.unwrap();
        assert!(
            request.starts_with("CONNECT h.test:443 HTTP/1.1\r\n"),
            "{request}"
        );
        assert!(
            request.contains("Proxy-Authorization: Basic dTpw\r\n"),
            "{request}"
        );
    }

    #[tokio::test]
    async fn refusal_and_non_proxy_are_distinct_errors() {
        let (proxy, _) = proxy_with_response("HTTP/1.1 407 No\r\n\r\n").await;
        let error = proxy.dial("h:1").await.unwrap_err();
        assert!(matches!(error, ConnectError::ProxyRefused { status: 407 }));
        let (proxy, _) = proxy_with_response("hello\r\n\r\n").await;
        let error = proxy.dial("h:1").await.unwrap_err();
        assert!(matches!(error, ConnectError::NotProxy(_)), "{error}");
    }
}

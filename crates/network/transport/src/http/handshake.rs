//! Checks that apply to every request, the server side of the websocket handshake (RFC 6455 section
//! 4.2), and short text responses. Pure.
//!
//! [`AllowedHosts`] validates the `Host` of a request against DNS rebinding: a web page whose name
//! was made to resolve to this machine sends that name, and a simple `GET` carries no `Origin`.

use std::{fmt, net::IpAddr, path::Path, str::FromStr, sync::Arc};

use base64_simd::STANDARD;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header,
    uri::Authority,
};
use http_body_util::Full;
use hyper::body::Bytes;
use tokio_rustls::rustls::{
    client::verify_server_name,
    pki_types::{CertificateDer, ServerName},
    server::ParsedCertificate,
};

use crate::{
    tls::{TlsError, leaf_certificate},
    websocket::accept_key,
};

/// Checks a request on any route: origin, HTTP version, host and number of authorization headers.
///
/// # Errors
/// Returns the refusal to send.
#[expect(
    clippy::result_large_err,
    reason = "the refusal is the response, made once per request"
)]
pub(super) fn check_request<B>(
    request: &Request<B>,
    hosts: &AllowedHosts,
) -> Result<(), Response<Full<Bytes>>> {
    let headers = request.headers();
    if headers.contains_key(header::ORIGIN) {
        return Err(text_response(StatusCode::FORBIDDEN, ""));
    }
    if request.version() != Version::HTTP_11 {
        let text = "expected HTTP/1.1";
        return Err(text_response(StatusCode::HTTP_VERSION_NOT_SUPPORTED, text));
    }
    let Some(host) = single_value(headers, header::HOST) else {
        let text = "expected one Host header";
        return Err(text_response(StatusCode::BAD_REQUEST, text));
    };
    // In absolute form, the target takes precedence over the header (RFC 9112 section 3.2.2).
    let target = request.uri().authority();
    let target = target.map_or(Some(true), |target| hosts.allow_authority(target));
    let (Some(is_host_allowed), Some(is_target_allowed)) = (hosts.allow(host), target) else {
        let text = "malformed Host header";
        return Err(text_response(StatusCode::BAD_REQUEST, text));
    };
    if !(is_host_allowed && is_target_allowed) {
        let text = "Host is not a name of this server; --allowed-host adds one";
        return Err(text_response(StatusCode::FORBIDDEN, text));
    }
    let mut authorizations = headers.get_all(header::AUTHORIZATION).iter();
    if authorizations.nth(1).is_some() {
        let text = "expected one Authorization header";
        return Err(text_response(StatusCode::BAD_REQUEST, text));
    }
    Ok(())
}

/// Returns whether a request asks for a websocket.
pub fn wants_websocket(headers: &HeaderMap) -> bool {
    has_token(headers, header::CONNECTION, "upgrade")
        && has_token(headers, header::UPGRADE, "websocket")
}

/// Answers an upgrade request: accepts it, or refuses anything but a version 13 handshake.
pub(super) fn upgrade_response<B>(request: &Request<B>) -> Response<Full<Bytes>> {
    let headers = request.headers();
    if request.method() != Method::GET {
        return method_not_allowed("GET", "expected GET");
    }
    if !wants_websocket(headers) {
        return text_response(StatusCode::BAD_REQUEST, "expected a websocket upgrade");
    }
    let length = headers.get(header::CONTENT_LENGTH);
    if headers.contains_key(header::TRANSFER_ENCODING) || length.is_some_and(|length| length != "0")
    {
        return text_response(StatusCode::BAD_REQUEST, "expected a request without a body");
    }
    let version = single_value(headers, header::SEC_WEBSOCKET_VERSION);
    if version.is_none_or(|version| version != "13") {
        let mut response = text_response(
            StatusCode::UPGRADE_REQUIRED,
            "expected websocket version 13",
        );
        let reply = response.headers_mut();
        reply.insert(
            header::SEC_WEBSOCKET_VERSION,
            HeaderValue::from_static("13"),
        );
        return response;
    }
    let key = single_value(headers, header::SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes);
    let Some(key) = key.filter(|key| is_websocket_key(key)) else {
        let text = "expected a Sec-WebSocket-Key of 16 bytes in base64";
        return text_response(StatusCode::BAD_REQUEST, text);
    };
    let mut response = text_response(StatusCode::SWITCHING_PROTOCOLS, "");
    let reply = response.headers_mut();
    reply.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    reply.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::from_str(&accept_key(key)) {
        reply.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

fn is_websocket_key(key: &[u8]) -> bool {
    key.len() == 24 && STANDARD.decode_to_vec(key).is_ok_and(|key| key.len() == 16)
}

/// Returns the value of a header that occurs exactly once.
fn single_value(headers: &HeaderMap, name: HeaderName) -> Option<&HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

fn has_token(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|part| part.trim().eq_ignore_ascii_case(token))
}

/// Makes a response with a line of text, or an empty one.
pub(super) fn text_response(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let body = body.into();
    let empty = body.is_empty();
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    if !empty {
        let kind = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    response
}

/// Refuses a method that is not among the allowed ones.
pub(super) fn method_not_allowed(
    allowed: &'static str,
    text: &'static str,
) -> Response<Full<Bytes>> {
    let mut response = text_response(StatusCode::METHOD_NOT_ALLOWED, text);
    let allowed = HeaderValue::from_static(allowed);
    response.headers_mut().insert(header::ALLOW, allowed);
    response
}

#[cfg(any(test, fuzzing))]
const MAX_HEADERS: usize = 100;

#[cfg(any(test, fuzzing))]
/// Parses bytes as a request and checks it; parses the same bytes as a response.
///
/// # Panics
/// Panics if an invalid request would become a websocket.
pub fn http_handshake(data: &[u8]) {
    crate::connect::fuzz_response(data);
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    if !matches!(parsed.parse(data), Ok(httparse::Status::Complete(_))) {
        return;
    }
    let mut builder = Request::builder()
        .method(parsed.method.unwrap_or_default())
        .uri(parsed.path.unwrap_or_default())
        .version(match parsed.version {
            Some(1) => Version::HTTP_11,
            _ => Version::HTTP_10,
        });
    for header in parsed.headers.iter() {
        builder = builder.header(header.name, header.value);
    }
    let Ok(request) = builder.body(()) else {
        return;
    };
    let hosts = AllowedHosts::new(["box.example"]);
    if check_request(&request, &hosts).is_err() {
        return;
    }
    let headers = request.headers();
    let count = |name| headers.get_all(name).iter().count();
    assert_eq!(request.version(), Version::HTTP_11);
    assert!(!headers.contains_key(header::ORIGIN), "no web page");
    assert_eq!(count(header::HOST), 1, "one host");
    assert!(count(header::AUTHORIZATION) <= 1, "one authorization");
    let response = upgrade_response(&request);
    let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    assert_eq!(
        upgraded,
        response
            .headers()
            .contains_key(header::SEC_WEBSOCKET_ACCEPT)
    );
    if upgraded {
        assert_eq!(*request.method(), Method::GET);
        assert_eq!(count(header::SEC_WEBSOCKET_KEY), 1, "one key");
        assert_eq!(headers[header::SEC_WEBSOCKET_VERSION], "13");
        assert!(!headers.contains_key(header::TRANSFER_ENCODING), "no body");
    }
}

/// Configured DNS names of a listener, separated by commas.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HostNames(Vec<String>);

impl HostNames {
    /// Returns the names, in lower case.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl FromStr for HostNames {
    type Err = HostNamesParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = text.split(',').map(|name| {
            let name = name.trim();
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            match !name.is_empty() && name.len() <= 253 && name.chars().all(is_name) {
                true => Ok(canonical(name)),
                false => Err(HostNamesParseError(name.escape_debug().to_string())),
            }
        });
        names.collect::<Result<_, _>>().map(Self)
    }
}

/// Caller: the text is not a list of host names.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid host name `{0}`; expected names such as box.example.org, without scheme and port")]
pub struct HostNamesParseError(String);

/// Hosts that a listener accepts: every IP address, `localhost`, the machine's name, the names of
/// its certificate, and the configured names.
#[derive(Clone, Default)]
pub struct AllowedHosts {
    names: Arc<Vec<String>>,
    certificate: Option<Arc<CertificateDer<'static>>>,
    any: bool,
}

impl fmt::Debug for AllowedHosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllowedHosts")
            .field("names", &self.names)
            .field("any", &self.any)
            .finish_non_exhaustive()
    }
}

impl AllowedHosts {
    /// Allows these names in addition to the built-in ones.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let system = rustix::system::uname();
        let hostname = system.nodename().to_str().unwrap_or_default().to_owned();
        let mut all = vec!["localhost".to_owned(), canonical(&hostname)];
        all.extend(names.into_iter().map(canonical));
        all.retain(|name| !name.is_empty());
        Self {
            names: Arc::new(all),
            certificate: None,
            any: false,
        }
    }

    /// Allows every host, for sockets that DNS cannot name.
    pub fn any() -> Self {
        Self {
            any: true,
            ..Self::default()
        }
    }

    /// Allows the names of a certificate as well: the first one of a PEM file.
    ///
    /// # Errors
    /// Fails if the file cannot be read or contains no certificate.
    pub fn with_certificate(self, path: &Path) -> Result<Self, TlsError> {
        let certificate = Some(Arc::new(leaf_certificate(path)?));
        Ok(Self {
            certificate,
            ..self
        })
    }

    /// Returns whether the value of a `Host` header is allowed; `None` if it is malformed.
    pub(super) fn allow(&self, value: &HeaderValue) -> Option<bool> {
        let authority = Authority::try_from(value.as_bytes()).ok()?;
        self.allow_authority(&authority)
    }

    /// Returns the same for the authority of a request target.
    fn allow_authority(&self, authority: &Authority) -> Option<bool> {
        let host = authority.host();
        if host.is_empty() || authority.as_str().contains('@') {
            return None;
        }
        let address = host.trim_start_matches('[').trim_end_matches(']');
        if self.any || address.parse::<IpAddr>().is_ok() {
            return Some(true);
        }
        let name = canonical(host);
        Some(self.names.contains(&name) || self.is_certified(&name))
    }

    fn is_certified(&self, name: &str) -> bool {
        let Some(certificate) = &self.certificate else {
            return false;
        };
        let (Ok(name), Ok(certificate)) = (
            ServerName::try_from(name),
            ParsedCertificate::try_from(&**certificate),
        ) else {
            return false;
        };
        verify_server_name(&certificate, &name).is_ok()
    }
}

/// Normalises a name: lower case, without the trailing dot.
fn canonical(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(hosts: &AllowedHosts, host: &str) -> Option<bool> {
        hosts.allow(&HeaderValue::from_str(host).unwrap())
    }

    #[test]
    fn addresses_and_configured_names_are_allowed() {
        let names: HostNames = "box.example, Other".parse().unwrap();
        let hosts = AllowedHosts::new(names.iter());
        let system = rustix::system::uname();
        let hostname = system.nodename().to_str().unwrap();
        for host in [
            "127.0.0.1",
            "127.0.0.1:80",
            "[::1]:8080",
            "192.0.2.7:1",
            "localhost",
            "LocalHost.:9",
            "BOX.example:443",
            "other",
            hostname,
        ] {
            assert_eq!(allowed(&hosts, host), Some(true), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "x.box.example",
        ] {
            assert_eq!(allowed(&hosts, host), Some(false), "{host}");
            assert_eq!(allowed(&AllowedHosts::any(), host), Some(true), "{host}");
        }
        for host in ["", "a b", "user@localhost", "/", "a/b", ":80"] {
            assert_eq!(allowed(&hosts, host), None, "{host:?}");
        }
    }

    #[test]
    fn names_of_the_certificate_are_allowed() {
        let names = vec!["box.example".to_owned(), "*.lab.example".to_owned()];
        let certified = rcgen::generate_simple_self_signed(names).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cert.pem");
        std::fs::write(&path, certified.cert.pem()).unwrap();
        let hosts = AllowedHosts::new([]).with_certificate(&path).unwrap();
        assert_eq!(allowed(&hosts, "box.example:443"), Some(true));
        assert_eq!(allowed(&hosts, "a.lab.example"), Some(true));
        assert_eq!(allowed(&hosts, "evil.example"), Some(false));
    }

    #[test]
    fn host_names_with_scheme_port_or_wildcard_are_rejected() {
        for text in ["", "a,,b", "http://a", "a:80", "[::1]", "a b", "*.a"] {
            assert!(text.parse::<HostNames>().is_err(), "{text:?}");
        }
    }
}

use proptest::prelude::*;

use super::*;

fn parse(head: &str) -> Result<ProxyRequest, HttpRequestError> {
    ProxyRequest::parse(head.as_bytes())
}

fn forwarded(head: &str) -> String {
    String::from_utf8(parse(head).unwrap().write_head()).unwrap()
}

#[test]
fn connect_target_has_a_host_and_a_port() {
    for (target, host, port) in [
        ("example.com:443", "example.com", 443),
        ("EXAMPLE.com.:8443", "example.com", 8443),
        ("[::1]:443", "::1", 443),
        ("127.1:1", "127.0.0.1", 1),
    ] {
        let request = parse(&format!("CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n")).unwrap();
        assert_eq!((request.host.as_str(), request.port), (host, port));
        assert_eq!(request.kind, RequestKind::Connect);
    }
}

#[test]
fn invalid_targets_are_refused() {
    for (line, error) in [
        ("CONNECT example.com", HttpRequestError::Port),
        ("CONNECT example.com:", HttpRequestError::Port),
        ("CONNECT example.com:0", HttpRequestError::Port),
        ("CONNECT example.com:65536", HttpRequestError::Port),
        ("CONNECT example.com:+80", HttpRequestError::Port),
        ("CONNECT ::1:80", HttpRequestError::Port),
        ("CONNECT a@example.com:80", HttpRequestError::User),
        ("CONNECT http://example.com:80", HttpRequestError::Port),
        (
            "CONNECT 1.2.3.999:80",
            HttpRequestError::Host(HostError::InvalidIpv4),
        ),
        ("GET /", HttpRequestError::Target),
        ("GET *", HttpRequestError::Target),
        ("GET example.com", HttpRequestError::Target),
        ("GET https://example.com/", HttpRequestError::Target),
        ("GET ftp://example.com/", HttpRequestError::Target),
        ("GET http://a@example.com/", HttpRequestError::User),
        ("GET http://good.com@evil.com/", HttpRequestError::User),
        (
            "GET http:///path",
            HttpRequestError::Host(HostError::Malformed),
        ),
        (
            "GET http://a\\b/",
            HttpRequestError::Host(HostError::Malformed),
        ),
        (
            "GET http://a%2eb/",
            HttpRequestError::Host(HostError::Malformed),
        ),
        ("GET http://good.com#evil.com/", HttpRequestError::Target),
        ("GET http://a:99999/", HttpRequestError::Port),
        ("GET http://[::1/", HttpRequestError::Port),
        (
            "GET http://[::1]x:80/",
            HttpRequestError::Host(HostError::Malformed),
        ),
        ("G(T http://a/", HttpRequestError::Syntax),
    ] {
        assert_eq!(
            parse(&format!("{line} HTTP/1.1\r\n\r\n")),
            Err(error),
            "{line}"
        );
    }
}

#[test]
fn ambiguous_heads_are_refused() {
    for head in [
        "GET http://a/ HTTP/1.1\nHost: a\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\nHost: a\n\n",
        "GET http://a/ HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\n Host: a\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\nX: a\r\n b\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET  http://a/ HTTP/1.1\r\n\r\n",
        "GET http://a/ b HTTP/1.1\r\n\r\n",
        "GET http://a/\tHTTP/1.1\r\n\r\n",
        "GET http://a/ HTTP/2.0\r\n\r\n",
        "GET http://a/\r\n\r\n",
        "POST http://a/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST http://a/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "POST http://a/ HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n",
        "POST http://a/ HTTP/1.1\r\nTransfer-Encoding: chunked, x\r\n\r\n",
        "POST http://a/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST http://a/ HTTP/1.1\r\nX: a\rb\r\n\r\n",
        "POST http://a/ HTTP/1.1\r\nX: a\0b\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nContent-Length: 1\r\n\r\n",
        "\r\n\r\n",
    ] {
        assert!(parse(head).is_err(), "{head:?}");
    }
    let fields: String = (0..=limits::MAX_FIELDS)
        .map(|n| format!("X{n}: y\r\n"))
        .collect();
    let head = format!("GET http://a/ HTTP/1.1\r\n{fields}\r\n");
    assert_eq!(parse(&head), Err(HttpRequestError::TooManyFields));
}

#[test]
fn forwarded_head_has_the_host_of_the_url() {
    assert_eq!(
        forwarded(
            "GET http://Example.com:80/a?b HTTP/1.1\r\nhost: evil.com\r\nAccept: x\r\n\
             Proxy-Connection: keep-alive\r\nConnection: keep-alive, X-A\r\nX-A: 1\r\n\r\n"
        ),
        "GET /a?b HTTP/1.1\r\nHost: example.com\r\nAccept: x\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(
        forwarded("POST HTTP://[2606::1]:81?q HTTP/1.0\r\ncontent-length: 03\r\n\r\n"),
        "POST /?q HTTP/1.0\r\nHost: [2606::1]:81\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(
        forwarded("OPTIONS http://a.b HTTP/1.1\r\n\r\n"),
        "OPTIONS * HTTP/1.1\r\nHost: a.b\r\nConnection: close\r\n\r\n"
    );
}

#[test]
fn only_websocket_upgrades_are_forwarded() {
    let head = |upgrade: &str| {
        forwarded(&format!(
            "GET http://a.b/ HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\n\
             Upgrade: {upgrade}\r\nHTTP2-Settings: x\r\n\r\n"
        ))
    };
    assert!(head("WebSocket").ends_with("\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"));
    assert_eq!(
        head("h2c"),
        "GET / HTTP/1.1\r\nHost: a.b\r\nConnection: close\r\n\r\n"
    );
}

proptest! {
    #[test]
    fn parser_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        drop(ProxyRequest::parse(&bytes));
    }

    #[test]
    fn forwarded_request_is_one_head_with_one_host(
        target in "(http://)?[a-c.:@\\[\\]#/?\\\\0-9]{0,20}",
        field in "[A-Za-z-]{1,8}:[ -~]{0,10}",
        version in "1\\.[01]",
    ) {
        let head = format!("GET {target} HTTP/{version}\r\n{field}\r\n\r\n");
        if let Ok(request) = parse(&head) {
            let out = String::from_utf8(request.write_head()).unwrap();
            prop_assert_eq!(out.matches("\r\n\r\n").count(), 1);
            let hosts = out.lines().filter(|line| line.to_lowercase().starts_with("host:"));
            prop_assert_eq!(hosts.count(), 1);
        }
    }
}

mod response {
    use super::*;

    fn request(method: &str, version: &str) -> ProxyRequest {
        ProxyRequest::parse(format!("{method} http://a/ HTTP/{version}\r\n\r\n").as_bytes())
            .unwrap()
    }

    #[test]
    fn body_kind_follows_from_request_and_head() {
        let (length, chunked) = (
            "Content-Length: 3\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
        );
        let both = format!("{length}{chunked}");
        let two = "Content-Length: 3\r\nContent-Length: 4\r\n";
        for (method, status, fields, expected) in [
            (
                "GET",
                "200 OK",
                length,
                Ok(BodyKind::Body(BodyFraming::Length(3))),
            ),
            (
                "GET",
                "200 OK",
                chunked,
                Ok(BodyKind::Body(BodyFraming::Chunked)),
            ),
            (
                "GET",
                "200 OK",
                &both,
                Ok(BodyKind::Body(BodyFraming::Chunked)),
            ),
            (
                "GET",
                "200",
                "",
                Ok(BodyKind::Body(BodyFraming::UntilClose)),
            ),
            (
                "GET",
                "200 OK",
                two,
                Err(HttpResponseError::Framing(FramingError::Length)),
            ),
            ("HEAD", "200 OK", length, Ok(BodyKind::Empty)),
            ("GET", "204 No", length, Ok(BodyKind::Empty)),
            ("GET", "304 No", length, Ok(BodyKind::Empty)),
            ("GET", "100 Continue", "", Ok(BodyKind::Interim)),
            ("GET", "101 Switch", "", Ok(BodyKind::Switch)),
        ] {
            let head = format!("HTTP/1.1 {status}\r\n{fields}\r\n");
            let response = ProxyResponse::parse(head.as_bytes()).unwrap();
            assert_eq!(
                response.body_kind(&request(method, "1.1")),
                expected,
                "{method} {head}"
            );
        }
        let response =
            ProxyResponse::parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        assert_eq!(
            response.unwrap().body_kind(&request("GET", "1.0")),
            Err(HttpResponseError::Version)
        );
    }

    #[test]
    fn response_head_is_forwarded_with_one_framing() {
        let head = b"HTTP/1.0 200 Fine\nA: b\nConnection: keep-alive\nKeep-Alive: 1\n\
            Content-Length: 3\nTransfer-Encoding: chunked\n\n";
        let response = ProxyResponse::parse(head).unwrap();
        let out = response.write_head(BodyKind::Body(BodyFraming::Chunked));
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "HTTP/1.1 200 Fine\r\nA: b\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
    }

    proptest! {
        #[test]
        fn parser_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop(ProxyResponse::parse(&bytes));
        }
    }
}

use super::*;

fn parse(url: &str) -> Result<ServerAddress, ServerAddressError> {
    url.parse()
}

fn host(url: &str) -> (WebSocketScheme, String, u16, String) {
    match parse(url) {
        Ok(ServerAddress::Network(host)) => (host.scheme, host.name, host.port, host.target),
        other => panic!("{url}: {other:?}"),
    }
}

#[test]
fn urls_are_parsed_with_default_ports_and_paths() {
    for (url, scheme, name, port, target) in [
        ("ws://a.test", WebSocketScheme::Ws, "a.test", 80, "/"),
        ("wss://a.test", WebSocketScheme::Wss, "a.test", 443, "/"),
        (
            "WS://A.test:8765/",
            WebSocketScheme::Ws,
            "A.test",
            8765,
            "/",
        ),
        (
            "wss://a.test?k=v",
            WebSocketScheme::Wss,
            "a.test",
            443,
            "/?k=v",
        ),
        (
            "ws://1.2.3.4:1/x/y?z",
            WebSocketScheme::Ws,
            "1.2.3.4",
            1,
            "/x/y?z",
        ),
        ("ws://[::1]", WebSocketScheme::Ws, "::1", 80, "/"),
        (
            "wss://[fe80::7]:65535/x",
            WebSocketScheme::Wss,
            "fe80::7",
            65535,
            "/x",
        ),
        (
            "ws://h/?role=harness",
            WebSocketScheme::Ws,
            "h",
            80,
            "/?role=harness",
        ),
    ] {
        let expected = (scheme, name.to_owned(), port, target.to_owned());
        assert_eq!(host(url), expected, "{url}");
    }
    assert_eq!(
        parse("unix:///run/exec server.sock"),
        Ok(ServerAddress::Unix("/run/exec server.sock".into()))
    );
}

#[test]
fn host_header_omits_the_default_port() {
    for (url, header) in [
        ("ws://a.test", "a.test"),
        ("ws://a.test:80/x", "a.test"),
        ("ws://a.test:443", "a.test:443"),
        ("wss://a.test:443", "a.test"),
        ("wss://[::1]", "[::1]"),
        ("wss://[::1]:80", "[::1]:80"),
    ] {
        let Ok(ServerAddress::Network(host)) = parse(url) else {
            panic!("{url}");
        };
        assert_eq!(host.header(), header, "{url}");
    }
}

#[test]
fn invalid_urls_are_rejected_with_the_matching_error() {
    for (url, error) in [
        ("", ServerAddressError::NoScheme),
        ("127.0.0.1:80", ServerAddressError::NoScheme),
        ("http://a", ServerAddressError::Scheme("http".to_owned())),
        ("ws://h:0", ServerAddressError::Port),
        ("ws://h:65536", ServerAddressError::Port),
        ("ws://h:", ServerAddressError::Port),
        ("ws://h:x", ServerAddressError::Port),
        ("ws://user@h", ServerAddressError::UserInfo),
        ("wss://user:pass@h:1/", ServerAddressError::UserInfo),
        ("ws://h/#x", ServerAddressError::Fragment),
        ("ws://[1.2.3.4]:1", ServerAddressError::NoHost),
        ("unix://run/x", ServerAddressError::Path),
        ("unix://", ServerAddressError::Path),
    ] {
        assert_eq!(parse(url), Err(error), "{url}");
    }
    for url in [
        "ws://",
        "ws:///x",
        "ws://a b",
        "ws://::1:80",
        "ws://[::1",
        "ws://h/a b",
        "ws://ü",
    ] {
        assert!(parse(url).is_err(), "{url}");
    }
}

#[test]
fn display_debug_and_errors_hide_secrets() {
    let address = parse("wss://h:1/p-secret?token=secret").unwrap();
    assert_eq!(address.to_string(), "wss://h:1");
    assert!(!format!("{address:?}").contains("secret"));
    for url in [
        "ws://me:secret@h",
        "ws://h:secret",
        "ws://secret secret",
        "secret",
        "ws:/me:secret@h/?next=http://x",
        "me:secret@h://x",
    ] {
        let error = parse(url).unwrap_err();
        assert!(
            !format!("{error} {error:?}").contains("secret"),
            "{url}: {error:?}"
        );
    }
}

#[test]
fn only_tls_and_loopback_are_private() {
    for url in [
        "wss://a.test",
        "ws://localhost",
        "ws://LOCALHOST:1",
        "ws://127.9.9.9",
        "ws://[::1]:1",
        "ws://[::ffff:127.0.0.1]",
        "unix:///x",
    ] {
        assert!(parse(url).unwrap().is_private(), "{url}");
    }
    for url in [
        "ws://a.test",
        "ws://10.0.0.1",
        "ws://localhost.evil.test",
        "ws://[fe80::1]",
        "ws://0.0.0.0",
    ] {
        assert!(!parse(url).unwrap().is_private(), "{url}");
    }
}

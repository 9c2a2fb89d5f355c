use proptest::prelude::*;

use super::*;

#[test]
fn hosts_are_normalised() {
    for (text, form) in [
        ("Example.COM", "example.com"),
        ("example.com.", "example.com"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("_srv.example", "_srv.example"),
        ("127.1", "127.0.0.1"),
        ("0x7F.0.0.1.", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("[::1]", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("[2001:DB8::0]", "2001:db8::"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("[::ffff:7f00:1]", "127.0.0.1"),
        ("1.example", "1.example"),
        ("0x7f.example", "0x7f.example"),
    ] {
        assert_eq!(TargetHost::parse(text).unwrap().as_str(), form, "{text}");
    }
}

#[test]
fn invalid_hosts_are_refused() {
    let long = format!("{}.com", "a.".repeat(130));
    let label = "a".repeat(64);
    for text in [
        "",
        ".",
        "a..b",
        "..",
        "a b",
        "a\tb",
        "a:80",
        "a@b",
        "bücher.example",
        "a/b",
        "a%2eb",
        "[127.0.0.1]",
        "[::1",
        "::1]",
        "fe80::1%eth0",
        "1.2.3.999",
        "1.2.3.4.5",
        "a.0x",
        "08",
        "a\\b",
        "a#b",
        "a?b",
        "127.0.0.1\0",
        "１２７.0.0.1",
        "a..",
        &long,
        &label,
    ] {
        assert!(TargetHost::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn localhost_and_its_subdomains_are_recognised() {
    for (text, expected) in [
        ("localhost", true),
        ("LOCALHOST.", true),
        ("a.b.localhost", true),
        ("notlocalhost", false),
        ("localhost.example", false),
    ] {
        assert_eq!(
            TargetHost::parse(text).unwrap().is_localhost(),
            expected,
            "{text}"
        );
    }
}

proptest! {
    #[test]
    fn normalisation_is_idempotent(text in "[a-zA-Z0-9.:x\\[\\]_-]{0,40}") {
        if let Ok(host) = TargetHost::parse(&text) {
            prop_assert_eq!(&TargetHost::parse(host.as_str()).unwrap(), &host);
            prop_assert_eq!(&TargetHost::parse(&host.to_string()).unwrap(), &host);
        }
    }

    #[test]
    fn numeric_addresses_are_never_names(text in "[0-9a-fx.]{1,16}") {
        if let Ok(host) = TargetHost::parse(&text)
            && host.address().is_none()
        {
            prop_assert_eq!(parse_numeric(&text), None);
            prop_assert!(text.parse::<IpAddr>().is_err());
        }
    }
}

#[test]
fn local_addresses_are_recognised_in_every_form() {
    for text in [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "198.18.0.1",
        "::",
        "::1",
        "fc00::1",
        "fd12::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "2001::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "::8.8.8.8",
        "64:ff9b::10.0.0.1",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::8.8.8.8",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2002:c0a8:101::",
        "100::1",
        "4000::1",
    ] {
        assert!(is_local(text.parse().unwrap()), "{text}");
    }
}

#[test]
fn public_addresses_are_not_local() {
    for text in [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.0.0.1",
        "128.0.0.1",
        "169.253.0.1",
        "172.15.0.1",
        "172.32.0.1",
        "192.167.1.1",
        "223.255.255.255",
        "2606:4700::1111",
        "2001:4860:4860::8888",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
    ] {
        assert!(!is_local(text.parse().unwrap()), "{text}");
    }
}

#[test]
fn numeric_notations_follow_inet_aton() {
    for (text, meaning) in [
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0X7F.1", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("127.0.1", "127.0.0.1"),
        ("10.65535", "10.0.255.255"),
        ("1.2.3.4", "1.2.3.4"),
        ("0", "0.0.0.0"),
        ("4294967295", "255.255.255.255"),
    ] {
        assert_eq!(parse_numeric(text), meaning.parse().ok(), "{text}");
    }
    for text in [
        "4294967296",
        "1.2.3.256",
        "256.1",
        "1.2.3.4.5",
        "08.0.0.1",
        "0x",
        "1..2",
        "",
        "+1",
        "1.-2",
        "0x+1",
        "1.16777216",
        "a.1",
        "99999999999",
    ] {
        assert_eq!(parse_numeric(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn every_parsed_address_looks_numeric(text in "[0-9a-fxX.+]{0,20}") {
        if parse_numeric(&text).is_some() {
            prop_assert!(looks_numeric(&text));
        }
    }

    #[test]
    fn embedding_addresses_are_as_local_as_the_embedded_one(bits: u32) {
        let inner = Ipv4Addr::from(bits);
        let local = is_local(IpAddr::V4(inner));
        let [a, b, c, d] = inner.octets();
        let six_to_four = format!("2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1");
        for text in [format!("::ffff:{inner}"), format!("64:ff9b::{inner}"), six_to_four] {
            prop_assert_eq!(is_local(text.parse().unwrap()), local, "{}", text);
        }
        prop_assert_eq!(parse_numeric(&bits.to_string()), Some(inner));
        prop_assert_eq!(parse_numeric(&format!("{bits:#x}")), Some(inner));
        prop_assert_eq!(parse_numeric(&format!("0{bits:o}")), Some(inner));
        prop_assert_eq!(parse_numeric(&inner.to_string()), Some(inner));
    }
}

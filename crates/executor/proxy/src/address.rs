//! Which addresses belong to the public internet, and what an IPv4 address in digits means.
//!
//! Invariant: an address that is not known to be public is local. Not here: names (`host`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Says whether `address` is on this machine, in a private network, or in no network at all.
/// IPv6 addresses that carry an IPv4 one are as local as what they carry.
pub fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_local_v4(address),
        IpAddr::V6(address) => match carried(address) {
            Some(inner) => is_local_v4(inner),
            None => !is_public_v6(address),
        },
    }
}

/// Tells whether `address` is link-local or a metadata service of a cloud, in any form that carries
/// one. These hand out credentials of the machine, so that allowing local networks does not
/// include them.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local() || V4_METADATA.contains(&address),
        IpAddr::V6(address) => match carried(address) {
            Some(inner) => is_link_local(IpAddr::V4(inner)),
            None => {
                address.is_unicast_link_local()
                    || V6_METADATA.contains(&address)
                    || (!is_public_v6(address) && is_link_local(IpAddr::V4(low_bits(address))))
            }
        },
    }
}

/// The last 32 bits, where IPv4-compatible, ISATAP and private NAT64 addresses carry an IPv4 one.
fn low_bits(address: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d)
}

/// Reads an IPv4 address in any notation that `inet_aton` takes: one to four numbers, each
/// decimal, octal or hexadecimal, of which the last fills what is left.
pub(crate) fn parse_numeric(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<&str> = text.split('.').collect();
    let (last, leading) = parts.split_last()?;
    if leading.len() > 3 {
        return None;
    }
    let mut value: u32 = 0;
    for part in leading {
        value = (value << 8) | u32::from(u8::try_from(number(part)?).ok()?);
    }
    let free = 32 - 8 * u32::try_from(leading.len()).ok()?;
    let last = number(last)?;
    if u64::from(last) >> free != 0 {
        return None;
    }
    let high = u32::try_from(u64::from(value) << free).ok()?;
    Some(Ipv4Addr::from(high | last))
}

/// Says whether a resolver could take `text` for an IPv4 address: its last label is a number.
pub(crate) fn looks_numeric(text: &str) -> bool {
    let last = text.rsplit('.').next().unwrap_or(text);
    let (digits, hex) = match last.strip_prefix("0x").or_else(|| last.strip_prefix("0X")) {
        Some(digits) => (digits, true),
        None => (last, false),
    };
    if hex {
        digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    } else {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    }
}

fn number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    // `from_str_radix` takes a sign, which no notation of an address has.
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

fn is_local_v4(address: Ipv4Addr) -> bool {
    V4_LOCAL.iter().any(|&(network, bits)| {
        let mask = u32::MAX << (32 - bits);
        u32::from(address) & mask == u32::from(network)
    })
}

/// Returns the IPv4 address to which packets for `address` are translated or tunnelled.
pub(crate) fn carried(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let of = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0xffff) | (0x64, 0xff9b, 0, 0, 0, 0) => Some(of(g, h)),
        (0x2002, _, _, _, _, _) => Some(of(b, c)),
        _ => None,
    }
}

/// Global unicast is 2000::/3; inside it, what IANA lists as not globally reachable is not public.
/// That leaves out loopback, unique local, link local, multicast and IPv4-compatible addresses.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    let global = a & 0xe000 == 0x2000;
    // 2001::/23 is for protocols: Teredo (which hides an IPv4 address), benchmarks, ORCHID.
    let protocol = a == 0x2001 && b & 0xfe00 == 0;
    let documentation = (a == 0x2001 && b == 0xdb8) || (a == 0x3fff && b & 0xf000 == 0);
    global && !protocol && !documentation
}

/// Networks of IPv4 that are not the public internet.
const V4_LOCAL: [(Ipv4Addr, u32); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8), // this host: Linux connects it to loopback
    (Ipv4Addr::new(10, 0, 0, 0), 8), // private
    (Ipv4Addr::new(100, 64, 0, 0), 10), // shared by carriers
    (Ipv4Addr::new(127, 0, 0, 0), 8), // loopback
    (Ipv4Addr::new(169, 254, 0, 0), 16), // link local, with the metadata of clouds
    (Ipv4Addr::new(172, 16, 0, 0), 12), // private
    (Ipv4Addr::new(192, 0, 0, 0), 24), // protocols
    (Ipv4Addr::new(192, 0, 2, 0), 24), // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24), // 6to4 relays
    (Ipv4Addr::new(192, 168, 0, 0), 16), // private
    (Ipv4Addr::new(198, 18, 0, 0), 15), // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24), // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24), // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 4), // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4), // reserved, and broadcast
];

/// Metadata services outside of the link-local network: Alibaba, Oracle and Azure.
const V4_METADATA: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(168, 63, 129, 16),
];
/// Metadata services over IPv6: AWS (instances, pods) and Google.
const V6_METADATA: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn local_addresses_are_known_in_every_form() {
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
    fn odd_notations_mean_what_inet_aton_says() {
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
        fn whatever_parses_as_an_address_looks_like_one(text in "[0-9a-fxX.+]{0,20}") {
            if parse_numeric(&text).is_some() {
                prop_assert!(looks_numeric(&text));
            }
        }

        #[test]
        fn forms_that_carry_an_address_are_as_local_as_it(bits: u32) {
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
}

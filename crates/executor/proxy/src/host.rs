//! A host as somebody names it: a DNS name or an address, in one form.
//!
//! Invariant: what means an IPv4 address never counts as a name, whatever its notation, and an IPv6
//! address that maps an IPv4 one *is* that one. Not here: ports, patterns, looking names up.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use crate::address;

/// A host in its one form: lower case, no trailing dot, addresses as numbers.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Host {
    text: String,
    address: Option<IpAddr>,
}

impl Host {
    /// Reads a name or an address. IPv6 may stand in brackets; a name is ASCII of at most 253
    /// bytes.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(HostError::Malformed)?;
            let address: Ipv6Addr = inner.parse().map_err(|_| HostError::Malformed)?;
            return Ok(Self::from(IpAddr::V6(address)));
        }
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Ok(Self::from(IpAddr::V6(address)));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if name.len() > MAX_NAME {
            return Err(HostError::TooLong);
        }
        if !name.split('.').all(is_label) {
            return Err(HostError::Malformed);
        }
        if address::looks_numeric(&name) {
            let address = address::parse_numeric(&name).ok_or(HostError::NoAddress)?;
            return Ok(Self::from(IpAddr::V4(address)));
        }
        Ok(Self {
            text: name,
            address: None,
        })
    }

    /// Returns the host, IPv6 without brackets.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the address, unless the host is a name.
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Says whether this is `localhost` or a name below it, which mean this machine everywhere.
    pub fn is_localhost(&self) -> bool {
        self.text == "localhost" || self.text.ends_with(".localhost")
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self {
            text: address.to_string(),
            address: Some(address),
        }
    }
}

/// Writes the host as it stands in a URL: IPv6 in brackets.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Some(IpAddr::V4(_)) | None => f.write_str(&self.text),
        }
    }
}

/// Why a text names no host.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Caller: there are characters in it that no name has. Names in other scripts are to be
    /// written in punycode.
    #[error("not a host name or address")]
    Malformed,
    /// Caller: DNS has no such names.
    #[error("longer than {MAX_NAME} bytes")]
    TooLong,
    /// Caller: it ends in a number, so it can only be an IPv4 address.
    #[error("not an IPv4 address, although it ends in a number")]
    NoAddress,
}

fn is_label(label: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=63).contains(&label.len()) && label.bytes().all(known)
}

/// The longest name DNS has, in text.
const MAX_NAME: usize = 253;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hosts_have_one_form() {
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
            assert_eq!(Host::parse(text).unwrap().as_str(), form, "{text}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
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
            assert!(Host::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn localhost_is_known_with_all_below_it() {
        for (text, expected) in [
            ("localhost", true),
            ("LOCALHOST.", true),
            ("a.b.localhost", true),
            ("notlocalhost", false),
            ("localhost.example", false),
        ] {
            assert_eq!(
                Host::parse(text).unwrap().is_localhost(),
                expected,
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn the_one_form_is_a_fixed_point(text in "[a-zA-Z0-9.:x\\[\\]_-]{0,40}") {
            if let Ok(host) = Host::parse(&text) {
                prop_assert_eq!(&Host::parse(host.as_str()).unwrap(), &host);
                prop_assert_eq!(&Host::parse(&host.to_string()).unwrap(), &host);
            }
        }

        #[test]
        fn nothing_that_the_system_takes_for_an_address_is_a_name(text in "[0-9a-fx.]{1,16}") {
            if let Ok(host) = Host::parse(&text)
                && host.address().is_none()
            {
                prop_assert_eq!(address::parse_numeric(&text), None);
                prop_assert!(text.parse::<IpAddr>().is_err());
            }
        }
    }
}

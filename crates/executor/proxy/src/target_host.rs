//! Target hosts: a DNS name or IP address in normal form, and the classification of addresses.
//!
//! Invariants: an IPv4 address in any notation is never treated as a name, an IPv4-mapped IPv6
//! address equals its IPv4 address, and an address that is not known to be public is local. Not
//! here: ports, patterns, name resolution.

#[cfg(test)]
mod tests;

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// A host in normal form: lower case, no trailing dot, numeric addresses.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct TargetHost {
    text: String,
    address: Option<IpAddr>,
}

impl TargetHost {
    /// Parses a name or an address. IPv6 may be in brackets. A name is ASCII of at most 253 bytes.
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
        if name.len() > MAX_NAME_BYTES {
            return Err(HostError::TooLong);
        }
        if !name.split('.').all(is_label) {
            return Err(HostError::Malformed);
        }
        if looks_numeric(&name) {
            let address = parse_numeric(&name).ok_or(HostError::InvalidIpv4)?;
            return Ok(Self::from(IpAddr::V4(address)));
        }
        Ok(Self {
            text: name,
            address: None,
        })
    }

    /// Returns the host, with IPv6 addresses without brackets.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the address, or `None` for a name.
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Returns whether this is `localhost` or a subdomain, which always mean this host.
    pub fn is_localhost(&self) -> bool {
        self.text == "localhost" || self.text.ends_with(".localhost")
    }
}

impl From<IpAddr> for TargetHost {
    fn from(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self {
            text: address.to_string(),
            address: Some(address),
        }
    }
}

/// Formats the host as in a URL, with IPv6 addresses in brackets.
impl fmt::Display for TargetHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Some(IpAddr::V4(_)) | None => f.write_str(&self.text),
        }
    }
}

/// Why a text is not a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Caller: invalid characters. Non-ASCII names must be given in punycode.
    #[error("not a host name or address")]
    Malformed,
    /// Caller: longer than DNS allows.
    #[error("longer than {MAX_NAME_BYTES} bytes")]
    TooLong,
    /// Caller: the last label is a number, but the text is not an IPv4 address.
    #[error("not a valid IPv4 address")]
    InvalidIpv4,
}

fn is_label(label: &str) -> bool {
    let is_label_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=63).contains(&label.len()) && label.bytes().all(is_label_byte)
}

/// Maximum length of a DNS name as text.
const MAX_NAME_BYTES: usize = 253;

/// Returns whether `address` is on this host, in a private network, or not routable. An IPv6
/// address that embeds an IPv4 address is classified by the embedded address.
pub fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_local_v4(address),
        IpAddr::V6(address) => match embedded_ipv4(address) {
            Some(inner) => is_local_v4(inner),
            None => !is_public_v6(address),
        },
    }
}

/// Returns whether `address` is link-local or a cloud metadata service, in any form that embeds
/// one. Metadata services provide credentials of the machine, so allowing local networks does not
/// allow them.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local() || METADATA_IPV4.contains(&address),
        IpAddr::V6(address) => match embedded_ipv4(address) {
            Some(inner) => is_link_local(IpAddr::V4(inner)),
            None => {
                address.is_unicast_link_local()
                    || METADATA_IPV6.contains(&address)
                    || (!is_public_v6(address) && is_link_local(IpAddr::V4(low_ipv4(address))))
            }
        },
    }
}

/// Returns the last 32 bits, which hold the IPv4 address in IPv4-compatible, ISATAP and private
/// NAT64 addresses.
fn low_ipv4(address: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d)
}

/// Parses an IPv4 address in any notation that `inet_aton` accepts: one to four decimal, octal or
/// hexadecimal numbers, of which the last fills the remaining bytes.
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

/// Returns whether a resolver could treat `text` as an IPv4 address: its last label is a number.
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
    // `from_str_radix` accepts a sign, which addresses cannot have.
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

fn is_local_v4(address: Ipv4Addr) -> bool {
    LOCAL_IPV4_NETWORKS.iter().any(|&(network, bits)| {
        let mask = u32::MAX << (32 - bits);
        u32::from(address) & mask == u32::from(network)
    })
}

/// Returns the IPv4 address to which packets for `address` are translated or tunnelled.
pub(crate) fn embedded_ipv4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let of = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0xffff) | (0x64, 0xff9b, 0, 0, 0, 0) => Some(of(g, h)),
        (0x2002, _, _, _, _, _) => Some(of(b, c)),
        _ => None,
    }
}

/// Global unicast is 2000::/3, except the ranges that IANA lists as not globally reachable. This
/// excludes loopback, unique local, link-local, multicast and IPv4-compatible addresses.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    let global = a & 0xe000 == 0x2000;
    // 2001::/23 is for protocols: Teredo (which hides an IPv4 address), benchmarks, ORCHID.
    let protocol = a == 0x2001 && b & 0xfe00 == 0;
    let documentation = (a == 0x2001 && b == 0xdb8) || (a == 0x3fff && b & 0xf000 == 0);
    global && !protocol && !documentation
}

/// IPv4 networks that are not part of the public internet.
const LOCAL_IPV4_NETWORKS: [(Ipv4Addr, u32); 15] = [
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

/// Metadata services outside the link-local network: Alibaba, Oracle and Azure.
const METADATA_IPV4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(168, 63, 129, 16),
];
/// Metadata services over IPv6: AWS (instances, pods) and Google.
const METADATA_IPV6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

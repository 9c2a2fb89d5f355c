//! What holds for every SOCKS5 message that the parsers accept.

use std::fmt::Debug;

use super::message::{self, Parsed};
use crate::host::Host;

/// A message is the same however its bytes come, and its host has one form.
pub(crate) fn check_messages(bytes: &[u8]) {
    check_prefixes(bytes, message::greeting);
    check_prefixes(bytes, message::request);
    if let Ok(Some((request, _))) = message::request(bytes) {
        check_host(&request.host);
    }
    if let Ok((host, port, data)) = message::datagram(bytes) {
        check_host(&host);
        assert!(data.len() < bytes.len(), "a datagram has a head");
        let Some(address) = host.address() else {
            return;
        };
        let mut written = Vec::new();
        message::write_datagram((address, port).into(), data, &mut written);
        assert_eq!(message::datagram(&written), Ok((host, port, data)));
    }
}

/// Every prefix of a complete message needs more bytes, and what follows it does not matter.
fn check_prefixes<T: Debug + PartialEq>(bytes: &[u8], parse: fn(&[u8]) -> Parsed<T>) {
    let Ok(Some((value, length))) = parse(bytes) else {
        return;
    };
    assert!(length <= bytes.len(), "no more is taken than there is");
    assert_eq!(parse(&bytes[..length]), Ok(Some((value, length))));
    for end in 0..length {
        assert_eq!(parse(&bytes[..end]), Ok(None), "prefix of {end} bytes");
    }
}

fn check_host(host: &Host) {
    assert_eq!(Host::parse(host.as_str()).as_ref(), Ok(host));
    assert_eq!(Host::parse(&host.to_string()).as_ref(), Ok(host));
}

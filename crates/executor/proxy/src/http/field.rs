//! The fields of a head, and what they say about its body.
//!
//! Invariant: a body has one length. A head that two readers could understand differently is
//! refused.

/// The fields of a head, in order. Names are as they came.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Fields(Vec<(String, Vec<u8>)>);

/// How a body ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Framing {
    /// After so many bytes.
    Length(u64),
    /// After the last chunk.
    Chunked,
    /// With the connection.
    UntilClose,
}

impl Fields {
    /// Takes the fields that were parsed.
    pub(super) fn from_parsed(parsed: &[httparse::Header<'_>]) -> Self {
        let owned = |field: &httparse::Header<'_>| (field.name.to_owned(), field.value.to_vec());
        Self(parsed.iter().map(owned).collect())
    }

    /// Returns the values of all fields with this name.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let same = move |(field, _): &&(String, Vec<u8>)| field.eq_ignore_ascii_case(name);
        self.0
            .iter()
            .filter(same)
            .map(|(_, value)| value.as_slice())
    }

    /// Says whether a field of this name lists `token`.
    pub(super) fn lists(&self, name: &str, token: &str) -> bool {
        self.all(name)
            .flat_map(items)
            .any(|item| item.eq_ignore_ascii_case(token.as_bytes()))
    }

    /// Returns what `Content-Length` says. Repeating the same length is allowed.
    pub(super) fn length(&self) -> Result<Option<u64>, FramingError> {
        let mut length = None;
        for item in self.all("content-length").flat_map(items) {
            let value = digits(item).ok_or(FramingError::Length)?;
            if length.is_some_and(|other| other != value) {
                return Err(FramingError::Length);
            }
            length = Some(value);
        }
        Ok(length)
    }

    /// Returns how the body of a request ends.
    pub(super) fn request_framing(&self) -> Result<Framing, FramingError> {
        let length = self.length()?;
        let mut codings = self.all("transfer-encoding");
        match (codings.next(), codings.next(), length) {
            (None, _, length) => Ok(Framing::Length(length.unwrap_or(0))),
            (Some(_), _, Some(_)) => Err(FramingError::Both),
            (Some(coding), None, None) if coding.eq_ignore_ascii_case(b"chunked") => {
                Ok(Framing::Chunked)
            }
            (Some(_), _, None) => Err(FramingError::Coding),
        }
    }

    /// Returns how the body of a response ends, if it has one. A response with both is chunked.
    pub(super) fn response_framing(&self) -> Result<Framing, FramingError> {
        let last = self.all("transfer-encoding").flat_map(items).last();
        match last {
            Some(coding) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
            Some(_) => Ok(Framing::UntilClose),
            None => Ok(self.length()?.map_or(Framing::UntilClose, Framing::Length)),
        }
    }

    /// Writes those fields that are not about one connection only, nor about framing or hosts.
    pub(super) fn write_end_to_end(&self, out: &mut Vec<u8>) {
        for (name, value) in &self.0 {
            if !is_hop_by_hop(name) && !self.lists("connection", name) {
                write_field(out, name, value);
            }
        }
    }

    /// Writes the fields with this name.
    pub(super) fn write_all(&self, name: &str, out: &mut Vec<u8>) {
        for value in self.all(name) {
            write_field(out, name, value);
        }
    }
}

/// Writes one field.
pub(super) fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for piece in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(piece);
    }
}

/// Why nobody can say where a body ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum FramingError {
    /// Peer: there are several lengths, or something else than a number.
    #[error("the content length is not one number")]
    Length,
    /// Peer: the two contradict each other, if not here then elsewhere.
    #[error("a transfer encoding together with a content length")]
    Both,
    /// Peer: only `chunked` is known.
    #[error("a transfer encoding other than chunked")]
    Coding,
}

/// Fields that are about one connection, and those that are written anew for the next one.
fn is_hop_by_hop(name: &str) -> bool {
    let begins = |prefix: &str| {
        let start = name.as_bytes().get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    HOP_BY_HOP
        .iter()
        .any(|known| known.eq_ignore_ascii_case(name))
        || begins("proxy-")
}

fn items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii)
}

fn digits(text: &[u8]) -> Option<u64> {
    // `parse` takes a sign, which a length does not have.
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    // HTTP/2 by upgrade would carry requests for other hosts.
    "http2-settings",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.as_bytes().to_vec());
        Fields(pairs.iter().map(owned).collect())
    }

    #[test]
    fn a_body_has_one_length_or_none() {
        let (cl, te) = ("Content-Length", "transfer-ENCODING");
        for (pairs, expected) in [
            (vec![], Ok(Framing::Length(0))),
            (vec![(cl, "5")], Ok(Framing::Length(5))),
            (vec![(cl, "5"), (cl, "5")], Ok(Framing::Length(5))),
            (vec![(cl, "5, 5")], Ok(Framing::Length(5))),
            (vec![(cl, "5"), (cl, "6")], Err(FramingError::Length)),
            (vec![(cl, "5,6")], Err(FramingError::Length)),
            (vec![(cl, "+5")], Err(FramingError::Length)),
            (vec![(cl, "-5")], Err(FramingError::Length)),
            (vec![(cl, "5 5")], Err(FramingError::Length)),
            (vec![(cl, "0x5")], Err(FramingError::Length)),
            (vec![(cl, "")], Err(FramingError::Length)),
            (
                vec![(cl, "99999999999999999999")],
                Err(FramingError::Length),
            ),
            (vec![(te, "Chunked")], Ok(Framing::Chunked)),
            (vec![(te, "chunked"), (cl, "5")], Err(FramingError::Both)),
            (
                vec![(te, "chunked"), (te, "chunked")],
                Err(FramingError::Coding),
            ),
            (vec![(te, "gzip, chunked")], Err(FramingError::Coding)),
            (vec![(te, "chunked, identity")], Err(FramingError::Coding)),
            (vec![(te, "xchunked")], Err(FramingError::Coding)),
            (vec![(te, "chunked\u{b}")], Err(FramingError::Coding)),
            (vec![(te, "")], Err(FramingError::Coding)),
        ] {
            assert_eq!(fields(&pairs).request_framing(), expected, "{pairs:?}");
        }
    }

    #[test]
    fn fields_of_one_connection_stay_there() {
        let fields = fields(&[
            ("Accept", "*/*"),
            ("Connection", "close, X-Secret"),
            ("x-secret", "1"),
            ("Proxy-Authorization", "Basic"),
            ("PROXY-Connection", "keep-alive"),
            ("Host", "other"),
            ("TE", "trailers"),
            ("Cookie", "a=b"),
        ]);
        let mut out = Vec::new();
        fields.write_end_to_end(&mut out);
        assert_eq!(out, b"Accept: */*\r\nCookie: a=b\r\n");
    }
}

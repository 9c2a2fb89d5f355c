//! What can be said about a path from its text alone: parent, name, containment.
//!
//! A segment with an encoded separator is several names in one, and may hide a `..`. Whatever
//! would have to look inside such a segment refuses instead.

use std::borrow::Cow;

use super::{
    convention::{Convention, is_drive, is_url_drive},
    encode, opaque,
    uri::{PathUri, SCHEME},
};

impl PathUri {
    /// Returns the directory that holds this path.
    ///
    /// There is none for `/`, a drive root, a UNC share, an opaque URI, and a last segment that
    /// contains an encoded separator.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let mut parts = Parts::of(self)?;
        let last = parts.names.pop()?;
        (!parts.has_separator(&last)).then(|| parts.into_uri())
    }

    /// Returns the last name of this path, decoded; it need not be UTF-8.
    ///
    /// There is none wherever there is no [`parent`](Self::parent).
    #[must_use]
    pub fn file_name(&self) -> Option<Vec<u8>> {
        let mut parts = Parts::of(self)?;
        let last = parts.names.pop()?;
        (!parts.has_separator(&last)).then(|| encode::decode(&last).into_owned())
    }

    /// Tells whether `other` is this path or lies below it, comparing whole names.
    ///
    /// The answer is *no* whenever it cannot be told from the text: across conventions, for two
    /// different opaque URIs, and if a segment of either contains an encoded separator.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        let (Some(base), Some(other_parts)) = (Parts::of(self), Parts::of(other)) else {
            return self == other;
        };
        let is_same_tree =
            base.convention == other_parts.convention && base.host == other_parts.host;
        let (Some(base), Some(names)) = (base.comparable(), other_parts.comparable()) else {
            return false;
        };
        is_same_tree && names.starts_with(&base)
    }
}

/// A URI taken apart. Empty segments are left out: native paths do not have them.
pub(super) struct Parts<'a> {
    pub(super) convention: Convention,
    pub(super) host: Cow<'a, str>,
    /// The drive or the share, as an encoded segment. Lexical operations never remove it.
    pub(super) anchor: Option<Cow<'a, str>>,
    /// The encoded segments below the anchor.
    pub(super) names: Vec<Cow<'a, str>>,
}

impl<'a> Parts<'a> {
    /// Takes a URI apart, unless it is opaque.
    pub(super) fn of(uri: &'a PathUri) -> Option<Self> {
        if uri.is_opaque() {
            return None;
        }
        let (host, path) = uri.host_and_path();
        let convention = uri.ordinary_convention();
        let mut segments = encode::segments(path).map(Cow::Borrowed);
        let anchor = if convention.is_windows() {
            segments.next()
        } else {
            None
        };
        Some(Self {
            convention,
            host: Cow::Borrowed(host),
            anchor,
            names: segments.collect(),
        })
    }

    /// Makes the parts of a POSIX path.
    pub(super) fn posix(names: Vec<Cow<'a, str>>) -> Self {
        Self {
            convention: Convention::Posix,
            host: Cow::Borrowed(""),
            anchor: None,
            names,
        }
    }

    /// Puts the parts together. A POSIX path that would read as a drive becomes opaque.
    pub(super) fn into_uri(mut self) -> PathUri {
        let starts_with_drive = |names: &[Cow<'_, str>]| {
            names
                .first()
                .is_some_and(|first| is_drive(&encode::decode(first)))
        };
        if self.convention == Convention::Posix && starts_with_drive(&self.names) {
            let path = format!("/{}", self.names.join("/"));
            return opaque::from_payload(&encode::decode(&path));
        }
        if self.convention != Convention::WindowsDrive {
            let first = self.anchor.as_mut().or_else(|| self.names.first_mut());
            if let Some(first) = first.filter(|first| is_url_drive(first)) {
                *first = Cow::Owned(encode::escape_drive(first));
            }
        }
        let is_drive_root = self.convention == Convention::WindowsDrive && self.names.is_empty();
        let mut text = format!("{SCHEME}{}", self.host);
        for segment in self.anchor.iter().chain(&self.names) {
            text.push('/');
            text.push_str(segment);
        }
        // `C:` alone would be the current directory of that drive.
        if is_drive_root || (self.anchor.is_none() && self.names.is_empty()) {
            text.push('/');
        }
        PathUri::from_canonical(text)
    }

    /// Tells whether an encoded segment is more than one name.
    pub(super) fn has_separator(&self, segment: &str) -> bool {
        encode::decode(segment)
            .iter()
            .any(|&byte| self.convention.is_separator(byte))
    }

    /// Returns all names from the root, ready to compare; none if one of them is ambiguous.
    fn comparable(&self) -> Option<Vec<Vec<u8>>> {
        let segments = self.anchor.iter().chain(&self.names);
        segments
            .map(|segment| {
                let mut name = encode::decode(segment).into_owned();
                if self.convention.is_windows() {
                    name.make_ascii_lowercase();
                }
                (!self.has_separator(segment)).then_some(name)
            })
            .collect()
    }
}

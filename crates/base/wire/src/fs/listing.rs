//! `fs/readDirectory`: whole listings, and listings by pages.

use serde::{Deserialize, Deserializer, Serialize, de};

use super::{is_false, metadata::link_members};
use crate::{base64_bytes::Base64Bytes, limits, path_uri::PathUri, sandbox::SandboxPolicy};

/// `fs/readDirectory`: lists a directory, by pages if one of `details`, `limit` and `cursor` is
/// given.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadDirectory {
    /// Path of the directory.
    pub path: PathUri,
    /// Returns mode and link target of each entry, and lists dangling links.
    #[serde(default, skip_serializing_if = "is_false")]
    pub details: bool,
    /// Maximum entries of the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::MAX_DIRECTORY_ENTRIES)))]
    pub limit: Option<usize>,
    /// Continues after the page that returned this cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<DirectoryCursor>,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

impl ReadDirectory {
    /// Creates a request for the whole listing.
    pub fn new(path: PathUri) -> Self {
        Self {
            path,
            details: false,
            limit: None,
            cursor: None,
            sandbox: None,
        }
    }

    /// Returns whether the listing is requested by pages.
    pub fn is_paged(&self) -> bool {
        self.details || self.limit.is_some() || self.cursor.is_some()
    }
}

/// Entries of a directory: all of them unordered, or one page sorted by the bytes of the name.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DirectoryListing {
    /// Entries without `.`, `..` and, unless `details` asked for them, dangling symbolic links.
    pub entries: Vec<DirectoryEntry>,
    /// Cursor of the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<DirectoryCursor>,
}

/// Entry of a directory.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DirectoryEntry {
    /// Name. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub file_name: String,
    /// Directory, possibly behind a symbolic link.
    pub is_directory: bool,
    /// Regular file, possibly behind a symbolic link.
    pub is_file: bool,
    /// With `details`: path of an entry whose name is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathUri>,
    /// With `details`: permission bits, those of the target for a symbolic link. Absent if they
    /// are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// With `details`: target of a symbolic link. Bytes that are not UTF-8 are replaced by U+FFFD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
    /// Bytes of a target that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target_base64: Option<Base64Bytes>,
}

impl DirectoryEntry {
    /// Adds the target of the symbolic link.
    pub fn with_link_target(mut self, target: Vec<u8>) -> Self {
        let (text, exact) = link_members(target);
        (self.link_target, self.link_target_base64) = (Some(text), exact);
        self
    }

    /// Returns the bytes of the link target.
    pub fn link_target_bytes(&self) -> Option<&[u8]> {
        match &self.link_target_base64 {
            Some(exact) => Some(&exact.0),
            None => self.link_target.as_deref().map(str::as_bytes),
        }
    }
}

/// Position in a listing by pages: the name of the last entry. Opaque to clients.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct DirectoryCursor(Base64Bytes);

impl DirectoryCursor {
    /// Creates the cursor of the page that ends with this name.
    pub fn after(name: &[u8]) -> Self {
        Self(Base64Bytes(name.to_vec().into()))
    }

    /// Returns the name of the last entry.
    pub fn name(&self) -> &[u8] {
        &self.0.0
    }
}

impl<'de> Deserialize<'de> for DirectoryCursor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Base64Bytes::deserialize(deserializer)?;
        let is_name = (1..=limits::MAX_NAME_BYTES).contains(&name.0.len())
            && !name.0.iter().any(|byte| matches!(byte, b'/' | 0));
        match is_name {
            true => Ok(Self(name)),
            false => Err(de::Error::custom(
                "cursor is not one that this method returned",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_listing_has_no_members_of_the_extension() {
        let request = serde_json::from_str::<ReadDirectory>(r#"{"path":"file:///a"}"#).unwrap();
        assert!(!request.is_paged());
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(text, r#"{"path":"file:///a"}"#);
        let listing = DirectoryListing {
            entries: vec![DirectoryEntry {
                file_name: "a".to_owned(),
                is_file: true,
                ..DirectoryEntry::default()
            }],
            next_cursor: None,
        };
        assert_eq!(
            serde_json::to_string(&listing).unwrap(),
            r#"{"entries":[{"fileName":"a","isDirectory":false,"isFile":true}]}"#
        );
    }

    #[test]
    fn only_names_are_cursors() {
        let decode = |text: &str| serde_json::from_str::<DirectoryCursor>(text).ok();
        assert_eq!(decode(r#""YWI=""#).unwrap().name(), b"ab");
        let long = serde_json::to_string(&DirectoryCursor::after(&[b'a'; 1025])).unwrap();
        // Empty, not base64, `a/b`, a NUL byte, too long, a number.
        for text in [r#""""#, r#""%""#, r#""YS9i""#, r#""AA==""#, &long, "7"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    #[test]
    fn link_target_keeps_every_byte() {
        for target in [&b"../a b"[..], b"not \xff text"] {
            let entry = DirectoryEntry::default().with_link_target(target.to_vec());
            let text = serde_json::to_string(&entry).unwrap();
            let decoded: DirectoryEntry = serde_json::from_str(&text).unwrap();
            assert_eq!(decoded.link_target_bytes(), Some(target));
            assert_eq!(decoded.link_target_base64.is_some(), target.contains(&0xff));
        }
    }
}

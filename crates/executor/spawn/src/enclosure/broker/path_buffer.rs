//! Paths in buffers of a fixed size.

use std::{
    ffi::{CStr, c_int},
    fmt,
};

use super::guard_table;
use crate::raw;

/// The kernel's bound of a path, with the zero at its end.
pub(super) const MAX_PATH: usize = 4096;

/// A path that was copied from somewhere.
#[derive(Debug)]
pub(super) struct Path {
    /// A path, a zero, and anything.
    bytes: [u8; MAX_PATH],
}

/// The two parts of a path.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    /// The directory. `None`: the one that the path is relative to.
    pub(super) parent: Option<&'a CStr>,
    /// The entry in it. Ends with one slash if the path ended with any: calls differ in what they
    /// make of that.
    pub(super) name: &'a CStr,
}

impl Path {
    /// An empty one. A constant needs no room for itself besides where it goes.
    pub(super) const EMPTY: Self = Self {
        bytes: [0; MAX_PATH],
    };

    /// Where the bytes go. What is put there ends with a zero.
    pub(super) const fn buffer(&mut self) -> &mut [u8; MAX_PATH] {
        &mut self.bytes
    }

    /// The path.
    pub(super) fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    /// Whether it starts at the root.
    pub(super) fn is_absolute(&self) -> bool {
        self.bytes.first() == Some(&b'/')
    }

    /// Replaces the path by that of a symbolic link. `None`: there is none, or it is too long.
    pub(super) fn read_link(&mut self, directory: c_int, name: &CStr) -> Option<()> {
        let room = MAX_PATH - 1;
        let args = [
            raw::int(directory),
            name.as_ptr() as usize,
            self.bytes.as_mut_ptr() as usize,
            room,
            0,
            0,
        ];
        let length = raw::numbers(libc::SYS_readlinkat, args).ok()?;
        if length >= room {
            return None;
        }
        *self.bytes.get_mut(length)? = 0;
        Some(())
    }

    /// Takes the path apart. `None`: there is no name in it that could be made.
    pub(super) fn split(&mut self) -> Option<Parts<'_>> {
        let length = self.text().to_bytes().len();
        let path = self.bytes.get(..length)?;
        let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
        let start = path.get(..end)?.iter().rposition(|byte| *byte == b'/');
        let start = start.map_or(0, |slash| slash + 1);
        if guard_table::is_dots(path.get(start..end)?) {
            return None;
        }
        if end < length {
            *self.bytes.get_mut(end + 1)? = 0;
        }
        if start == 0 {
            let name = CStr::from_bytes_until_nul(&self.bytes).ok()?;
            return Some(Parts { parent: None, name });
        }
        *self.bytes.get_mut(start - 1)? = 0;
        let parent = if start == 1 {
            c"/"
        } else {
            CStr::from_bytes_until_nul(&self.bytes).ok()?
        };
        let name = CStr::from_bytes_until_nul(self.bytes.get(start..)?).ok()?;
        Some(Parts {
            parent: Some(parent),
            name,
        })
    }
}

/// A short path that the broker writes itself, such as `7/cwd`.
#[derive(Debug)]
pub(super) struct Short {
    bytes: [u8; 64],
    length: usize,
}

impl Short {
    /// Writes one. What has no room is cut off; nothing that the broker writes is that long.
    pub(super) fn new(text: fmt::Arguments<'_>) -> Self {
        let mut short = Self {
            bytes: [0; 64],
            length: 0,
        };
        let _ = fmt::write(&mut short, text);
        short
    }

    /// The path.
    pub(super) fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        // The last byte stays zero.
        if end >= self.bytes.len() {
            return Err(fmt::Error);
        }
        let place = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Path;

    /// The parts of `text`.
    fn split(text: &str) -> Option<(Option<String>, String)> {
        let mut path = Path::EMPTY;
        path.buffer()[..text.len()].copy_from_slice(text.as_bytes());
        let parts = path.split()?;
        let text = |part: &std::ffi::CStr| part.to_str().unwrap().to_owned();
        Some((parts.parent.map(text), text(parts.name)))
    }

    #[test]
    fn a_path_is_split_before_its_last_name() {
        let cases = [
            ("a", None, "a"),
            ("/a", Some("/"), "a"),
            ("//a", Some("/"), "a"),
            ("a/b", Some("a"), "b"),
            ("a//b//", Some("a/"), "b/"),
            ("a/", None, "a/"),
            ("/a/../.git/", Some("/a/.."), ".git/"),
            ("...", None, "..."),
        ];
        for (path, parent, name) in cases {
            let expected = Some((parent.map(str::to_owned), name.to_owned()));
            assert_eq!(split(path), expected, "{path}");
        }
    }

    #[test]
    fn a_path_without_a_name_is_not_split() {
        for path in ["", "/", "//", ".", "..", "a/.", "a/..", "a/../", "./"] {
            assert_eq!(split(path), None, "{path}");
        }
    }
}

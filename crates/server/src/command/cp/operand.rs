//! Sources and targets as they are typed.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
};

use crate::command::failure::{Failure, FailureKind};

/// A source or a target.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Operand {
    /// A path of this machine.
    Here(PathBuf),
    /// A path of an environment: of the one that the line names, or of one by its name.
    There(Option<String>, OsString),
}

impl Operand {
    /// Reads it: `:path` and `name:path` are in an environment, everything else is here. A colon after
    /// a slash is part of a name.
    pub(super) fn read(typed: &OsStr) -> Result<Self, Failure> {
        let bytes = typed.as_bytes();
        if bytes.is_empty() {
            return Err(Failure::new(FailureKind::Usage, "a path is empty"));
        }
        let mark = bytes.iter().position(|&byte| matches!(byte, b':' | b'/'));
        let Some(colon) = mark.filter(|&mark| bytes[mark] == b':') else {
            return Ok(Self::Here(PathBuf::from(typed)));
        };
        let (name, path) = (&bytes[..colon], &bytes[colon + 1..]);
        if !name.is_empty() && path.starts_with(b"//") {
            let what = format!("`{}` is a URL, not a path", typed.display());
            return Err(Failure::new(FailureKind::Usage, what)
                .next("name the server with --env URL, and the path as `:/path`"));
        }
        let name = match name {
            b"" => None,
            name => {
                let wrong = || {
                    let what = format!("`{}` names no environment", typed.display());
                    Failure::new(FailureKind::Usage, what)
                        .next("write `./` before a file here that has a colon in its name")
                };
                Some(String::from_utf8(name.to_vec()).map_err(|_| wrong())?)
            }
        };
        let path = match path {
            b"" => OsString::from("."),
            path => OsString::from_vec(path.to_vec()),
        };
        Ok(Self::There(name, path))
    }

    /// The path as it was typed.
    pub(super) fn path(&self) -> &OsStr {
        match self {
            Self::Here(path) => path.as_os_str(),
            Self::There(_, path) => path,
        }
    }

    /// Tells whether it can only be a directory.
    pub(super) fn is_directory(&self) -> bool {
        self.path().as_bytes().ends_with(b"/") || !self.has_name()
    }

    /// Tells whether it ends in a name of its own: `.`, `..` and the root do not, and stand for what is
    /// in them.
    pub(super) fn has_name(&self) -> bool {
        let path = self.path().as_bytes();
        let mut names = path.split(|&byte| byte == b'/').rev();
        let last = names.find(|name| !name.is_empty());
        !matches!(last, None | Some(b"." | b".." | b"~"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Operand {
        Operand::read(OsStr::new(text)).unwrap()
    }

    fn there(name: Option<&str>, path: &str) -> Operand {
        Operand::There(name.map(str::to_owned), path.into())
    }

    #[test]
    fn a_colon_before_any_slash_names_an_environment() {
        assert_eq!(read(":/srv/x"), there(None, "/srv/x"));
        assert_eq!(read(":logs"), there(None, "logs"));
        assert_eq!(read("box:/x:y"), there(Some("box"), "/x:y"));
        assert_eq!(read("box:"), there(Some("box"), "."));
        assert_eq!(read(":"), there(None, "."));
        for here in ["notes.txt", "./a:b", "/tmp/a:b", "."] {
            assert_eq!(read(here), Operand::Here(here.into()));
        }
    }

    #[test]
    fn an_empty_path_and_a_url_are_refused() {
        for wrong in ["", "ws://127.0.0.1:80/x"] {
            let failure = Operand::read(OsStr::new(wrong)).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Usage, "{wrong}");
        }
    }

    #[test]
    fn what_has_no_name_stands_for_what_is_in_it() {
        for (typed, named, directory) in [
            ("a/b", true, false),
            ("a/b/", true, true),
            (".", false, true),
            ("a/..", false, true),
            ("a/.", false, true),
            ("/", false, true),
            (":~", false, true),
            (":.hidden", true, false),
        ] {
            let operand = read(typed);
            assert_eq!(operand.has_name(), named, "{typed}");
            assert_eq!(operand.is_directory(), directory, "{typed}");
        }
    }
}

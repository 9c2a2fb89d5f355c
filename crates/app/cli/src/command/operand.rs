//! Path operands as typed: `PATH`, `:PATH` and `NAME:PATH`.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
};

use exec_connect::target::Target;
use exec_wire::path_uri::PathUri;

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    failure::{CommandFailure, FailureKind},
};

/// Source or target operand.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum PathOperand {
    /// Local path.
    Local(PathBuf),
    /// Path in an environment: the one of `--env`, or a named one.
    Remote(Option<String>, OsString),
}

impl PathOperand {
    /// Parses an operand: `:path` and `name:path` are in an environment, everything else is local.
    /// A colon after a slash is part of the name.
    pub(crate) fn read(typed: &OsStr) -> Result<Self, CommandFailure> {
        let bytes = typed.as_bytes();
        if bytes.is_empty() {
            return Err(CommandFailure::usage("empty path"));
        }
        let mark = bytes.iter().position(|&byte| matches!(byte, b':' | b'/'));
        let Some(colon) = mark.filter(|&mark| bytes[mark] == b':') else {
            return Ok(Self::Local(PathBuf::from(typed)));
        };
        let target = typed.to_str().and_then(Target::split_path);
        let (name, path) = match target {
            Some((target, path)) => (target.as_bytes(), path.as_bytes()),
            None => (&bytes[..colon], &bytes[colon + 1..]),
        };
        if !name.is_empty() && path.starts_with(b"//") {
            let what = format!("`{}` is a URL, not a path", typed.display());
            return Err(CommandFailure::usage(what)
                .next("name the server with --env URL, and the path as `:/path`"));
        }
        let name = match name {
            b"" => None,
            name => {
                let wrong = || {
                    let what = format!("`{}` lacks the name of an environment", typed.display());
                    CommandFailure::usage(what)
                        .next("write `./` before a local file with a colon in its name")
                };
                Some(String::from_utf8(name.to_vec()).map_err(|_| wrong())?)
            }
        };
        let path = match path {
            b"" => OsString::from("."),
            path => OsString::from_vec(path.to_vec()),
        };
        Ok(Self::Remote(name, path))
    }

    /// Returns the path as typed.
    pub(crate) fn path(&self) -> &OsStr {
        match self {
            Self::Local(path) => path.as_os_str(),
            Self::Remote(_, path) => path,
        }
    }

    /// Returns whether it can only be a directory.
    pub(crate) fn is_directory(&self) -> bool {
        self.path().as_bytes().ends_with(b"/") || !self.has_name()
    }

    /// Returns whether it ends in a name: `.`, `..` and the root do not, and stand for their
    /// contents.
    pub(crate) fn has_name(&self) -> bool {
        let path = self.path().as_bytes();
        let mut names = path.split(|&byte| byte == b'/').rev();
        let last = names.find(|name| !name.is_empty());
        !matches!(last, None | Some(b"." | b".." | b"~"))
    }
}

/// Path in a connected environment.
#[derive(Clone, Debug)]
pub(crate) struct RemotePath {
    /// Environment.
    pub(crate) env: ConnectedEnv,
    /// Path there.
    pub(crate) path: PathUri,
    /// Prefix that names the environment: empty, `:` or `NAME:`.
    pub(crate) prefix: String,
    /// Path as typed after the prefix.
    pub(crate) typed: OsString,
}

/// Resolves operands in environments. Connects to each environment once.
#[derive(Debug)]
pub(crate) struct OperandResolver<'a> {
    env_args: &'a EnvArgs,
    open: Vec<(Option<String>, ConnectedEnv)>,
}

impl<'a> OperandResolver<'a> {
    /// Creates a resolver. Operands without a name use `env_args`.
    pub(crate) fn new(env_args: &'a EnvArgs) -> Self {
        Self {
            env_args,
            open: Vec::new(),
        }
    }

    /// Resolves one operand.
    pub(crate) async fn resolve(&mut self, typed: &OsStr) -> Result<RemotePath, CommandFailure> {
        let (name, prefix, path_text) = match PathOperand::read(typed) {
            // A `file:` URI is a path.
            _ if typed.as_bytes().starts_with(b"file:") => (None, "", typed.to_owned()),
            Ok(PathOperand::Local(path)) => (None, "", path.into_os_string()),
            Ok(PathOperand::Remote(None, path)) => (None, ":", path),
            Ok(PathOperand::Remote(Some(name), path)) => (Some(name), ":", path),
            Err(failure) => return Err(failure),
        };
        let env = self.env(name.as_deref(), typed).await?;
        let path = env.path(&path_text).await?;
        Ok(RemotePath {
            path,
            prefix: format!("{}{prefix}", name.unwrap_or_default()),
            typed: path_text,
            env,
        })
    }

    async fn env(
        &mut self,
        name: Option<&str>,
        typed: &OsStr,
    ) -> Result<ConnectedEnv, CommandFailure> {
        let opened = self
            .open
            .iter()
            .find(|(opened, _)| opened.as_deref() == name);
        if let Some((_, env)) = opened {
            return Ok(env.clone());
        }
        let opened = match name {
            None => ConnectedEnv::open(self.env_args).await,
            Some(name) => ConnectedEnv::open(&self.env_args.with_env(name)).await,
        };
        let is_name = name.is_some();
        let env = opened.map_err(|failure| {
            match is_name && failure.kind == FailureKind::UnknownEnvironment {
                true => failure.next(format!(
                    "write `./{}` if that is a file name",
                    typed.display()
                )),
                false => failure,
            }
        })?;
        self.open.push((name.map(str::to_owned), env.clone()));
        Ok(env)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> PathOperand {
        PathOperand::read(OsStr::new(text)).unwrap()
    }

    fn remote(name: Option<&str>, path: &str) -> PathOperand {
        PathOperand::Remote(name.map(str::to_owned), path.into())
    }

    #[test]
    fn colon_before_the_first_slash_separates_the_environment() {
        assert_eq!(read(":/srv/x"), remote(None, "/srv/x"));
        assert_eq!(read(":logs"), remote(None, "logs"));
        assert_eq!(read("box:/x:y"), remote(Some("box"), "/x:y"));
        assert_eq!(read("box:"), remote(Some("box"), "."));
        assert_eq!(read("ssh:box:/x"), remote(Some("ssh:box"), "/x"));
        assert_eq!(read("docker:web:x"), remote(Some("docker:web"), "x"));
        assert_eq!(read(":"), remote(None, "."));
        for local in ["notes.txt", "./a:b", "/tmp/a:b", "."] {
            assert_eq!(read(local), PathOperand::Local(local.into()));
        }
    }

    #[test]
    fn empty_path_and_url_are_rejected() {
        for wrong in ["", "ws://127.0.0.1:80/x"] {
            let failure = PathOperand::read(OsStr::new(wrong)).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Usage, "{wrong}");
        }
    }

    #[test]
    fn operand_without_a_name_stands_for_its_contents() {
        for (typed, has_name, directory) in [
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
            assert_eq!(operand.has_name(), has_name, "{typed}");
            assert_eq!(operand.is_directory(), directory, "{typed}");
        }
    }
}

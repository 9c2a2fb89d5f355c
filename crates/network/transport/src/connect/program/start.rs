//! Starting a program as a server.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt, fs, io,
    path::PathBuf,
    process::Stdio,
};

use tokio::{process::Command, sync::oneshot};

use super::{
    group::Group,
    keeper::Kept,
    link::{self, Held},
    said::Said,
};
use crate::{connect::ConnectError, link::Link};

/// A program that is a server on its standard input and output. `Debug` hides the values of its
/// environment.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Program {
    /// The program: a path, or a name that is looked for in `PATH`.
    pub program: OsString,
    /// What it is given.
    pub args: Vec<OsString>,
    /// Variables that it has beside those of this process, or instead of them.
    pub env: BTreeMap<OsString, OsString>,
    /// Where it works; where this process does, if absent.
    pub cwd: Option<PathBuf>,
}

impl Program {
    /// Describes a program without arguments.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            ..Self::default()
        }
    }

    /// Starts it. It ends when the link is dropped, with its process group: SIGTERM, and SIGKILL two
    /// seconds later. Where the runtime ends before, it has less time.
    ///
    /// # Errors
    /// When it cannot be started. Then nothing runs.
    pub fn start(&self) -> Result<Link, ConnectError> {
        let mut command = Command::new(&self.program);
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        let child = command
            .args(&self.args)
            .envs(&self.env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut child = child.map_err(|source| self.not_started(source))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let said = Said::new(child.stderr.take());
        let group = Group::new(child).map_err(|source| self.not_started(source))?;
        let pipes = pipes.ok_or_else(|| self.not_started(io::ErrorKind::BrokenPipe.into()))?;
        let (held, released) = Held::new();
        let (exit, exited) = oneshot::channel();
        let kept = Kept {
            program: self.name(),
            group,
            said,
            released,
            exit,
        };
        tokio::spawn(kept.keep());
        Ok(link::link(pipes, &held, exited, &self.name()))
    }

    /// Tells a program that is not there from a directory that is not.
    fn not_started(&self, source: io::Error) -> ConnectError {
        let misplaced = self.cwd.as_ref().and_then(|path| {
            let source = match fs::metadata(path) {
                Ok(found) if found.is_dir() => return None,
                Ok(_) => io::ErrorKind::NotADirectory.into(),
                Err(error) => error,
            };
            let path = path.clone();
            Some(ConnectError::WorkingDirectory { path, source })
        });
        misplaced.unwrap_or_else(|| ConnectError::Start {
            program: self.name(),
            source,
        })
    }

    fn name(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let env: Vec<&OsStr> = self.env.keys().map(OsString::as_os_str).collect();
        f.debug_struct("Program")
            .field("program", &self.program)
            .field("args", &self.args)
            .field("env", &env)
            .field("cwd", &self.cwd)
            .finish()
    }
}

//! The command that the server sends to the spawner: one frame, with descriptors attached.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::PathBuf,
};

use rustix::process::Resource;

use super::report::SpawnError;
use crate::sandbox_setup::SandboxSetup;

/// A command with nothing left to decide. The spawner looks up and validates nothing.
#[derive(Debug, Default)]
pub struct CommandSpec {
    /// Program to run. Looked up in the `PATH` of `env` if it contains no slash.
    pub program: OsString,
    /// Arguments, including the program's name.
    pub argv: Vec<OsString>,
    /// Complete environment of the command.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory.
    pub cwd: PathBuf,
    /// Descriptors that the command inherits in addition to the standard ones.
    pub inherited_fds: Vec<InheritedFd>,
    /// Resource limits.
    pub limits: Vec<ResourceLimit>,
    /// Sandbox set-up to apply between clone and exec.
    pub sandbox_setup: Option<SandboxSetup>,
}

/// Standard descriptors of a command.
#[derive(Debug)]
pub struct CommandStdio {
    /// Standard input, output and error.
    pub fds: [OwnedFd; 3],
    /// Whether they are a terminal, which becomes the controlling terminal.
    pub terminal: bool,
}

impl CommandStdio {
    /// Opens `/dev/null` for all of them.
    pub fn null() -> io::Result<Self> {
        let null: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open("/dev/null")?
            .into();
        Ok(Self {
            fds: [null.try_clone()?, null.try_clone()?, null],
            terminal: false,
        })
    }
}

/// A descriptor that the command inherits in addition to the standard ones.
#[derive(Debug)]
pub struct InheritedFd {
    /// The descriptor.
    pub fd: OwnedFd,
    /// Its number in the command.
    pub target: u8,
}

/// A resource limit, both soft and hard.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ResourceLimit {
    /// The limited resource.
    pub resource: Resource,
    /// The limit, in the resource's unit.
    pub value: u64,
}

/// Most descriptors in addition to the standard ones.
pub const MAX_EXTRA: usize = 4;
/// Most limits of a command.
pub(super) const MAX_LIMITS: usize = 5;
/// Length of the body and number of descriptors.
pub(super) const PREFIX_BYTES: usize = 8;
/// Most descriptors of a sandbox set-up: the Landlock ruleset and the socket for listeners.
const MAX_SETUP_FDS: usize = 2;
/// Most descriptors attached to a frame.
pub const MAX_FDS: usize = 4 + MAX_EXTRA + MAX_SETUP_FDS;
/// Flags, limits, targets of inherited descriptors, the number of strings of each kind, and the
/// length of the sandbox set-up after them.
pub(super) const HEAD_BYTES: usize = 4 + 4 + MAX_LIMITS * 12 + 4 + MAX_EXTRA * 4 + 4 * 4;
/// Longest frame. The kernel accepts at most 6 MiB of arguments and environment, and thousands of
/// sandbox steps need less.
pub const MAX_FRAME_BYTES: usize = 16 << 20;

impl CommandSpec {
    /// Copies everything except the sandbox set-up, which can be used for one start only.
    pub fn without_sandbox_setup(&self) -> io::Result<Self> {
        let inherited_fds = self.inherited_fds.iter().map(|inherited| {
            Ok(InheritedFd {
                fd: inherited.fd.try_clone()?,
                target: inherited.target,
            })
        });
        Ok(Self {
            program: self.program.clone(),
            argv: self.argv.clone(),
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            inherited_fds: inherited_fds.collect::<io::Result<_>>()?,
            limits: self.limits.clone(),
            sandbox_setup: None,
        })
    }

    /// Encodes everything except the descriptors. Fails if a text contains a NUL byte.
    pub fn encode(&self, stdio: &CommandStdio) -> Result<Vec<u8>, SpawnError> {
        let mut texts = Vec::new();
        push_text(&mut texts, "cwd", &[self.cwd.as_os_str()])?;
        let candidates = self.candidates();
        for candidate in &candidates {
            push_text(&mut texts, "argv", &[candidate])?;
        }
        for argument in &self.argv {
            push_text(&mut texts, "argv", &[argument])?;
        }
        for (name, value) in &self.env {
            push_text(&mut texts, "env", &[name, OsStr::new("="), value])?;
        }
        let setup = self.sandbox_setup.as_ref();
        let setup_fds = setup.map_or(0, |one| one.descriptors().len());
        let setup = setup.map_or_else(Vec::new, SandboxSetup::encode);
        let body = HEAD_BYTES + texts.len() + setup.len();
        let mut frame = Vec::with_capacity(PREFIX_BYTES + body);
        push_u32(&mut frame, body);
        push_u32(&mut frame, 4 + self.inherited_fds.len() + setup_fds);
        push_u32(&mut frame, usize::from(stdio.terminal));
        push_u32(&mut frame, self.limits.len());
        for index in 0..MAX_LIMITS {
            let limit = self.limits.get(index);
            push_u32(&mut frame, limit.map_or(0, |limit| limit.resource as usize));
            frame.extend_from_slice(&limit.map_or(0, |limit| limit.value).to_le_bytes());
        }
        push_u32(&mut frame, self.inherited_fds.len());
        for index in 0..MAX_EXTRA {
            push_u32(
                &mut frame,
                self.inherited_fds
                    .get(index)
                    .map_or(0, |extra| usize::from(extra.target)),
            );
        }
        push_u32(&mut frame, candidates.len());
        push_u32(&mut frame, self.argv.len());
        push_u32(&mut frame, self.env.len());
        push_u32(&mut frame, setup.len());
        frame.extend_from_slice(&texts);
        frame.extend_from_slice(&setup);
        Ok(frame)
    }

    /// Returns the descriptors in the order in which they are sent.
    pub fn descriptors<'a>(
        &'a self,
        control: BorrowedFd<'a>,
        stdio: &'a CommandStdio,
    ) -> Vec<BorrowedFd<'a>> {
        use std::os::fd::AsFd;

        std::iter::once(control)
            .chain(stdio.fds.iter().map(AsFd::as_fd))
            .chain(self.inherited_fds.iter().map(|extra| extra.fd.as_fd()))
            .chain(
                self.sandbox_setup
                    .iter()
                    .flat_map(SandboxSetup::descriptors),
            )
            .collect()
    }

    /// Returns the paths at which `execvp` would look for the program.
    fn candidates(&self) -> Vec<OsString> {
        let program = &self.program;
        if program.as_bytes().contains(&b'/') {
            return vec![program.clone()];
        }
        let path = self.env.iter().rfind(|(name, _)| name == "PATH");
        let path = path.map_or(OsStr::new("/bin:/usr/bin"), |(_, value)| value);
        let directories = path.as_bytes().split(|byte| *byte == b':');
        directories
            .map(|directory| {
                let mut candidate = directory.to_vec();
                if !candidate.is_empty() && !candidate.ends_with(b"/") {
                    candidate.push(b'/');
                }
                if candidate.is_empty() {
                    candidate.extend_from_slice(b"./");
                }
                candidate.extend_from_slice(program.as_bytes());
                OsString::from_vec(candidate)
            })
            .collect()
    }
}

/// Appends the concatenation of `parts` and a NUL byte.
fn push_text(texts: &mut Vec<u8>, field: &'static str, parts: &[&OsStr]) -> Result<(), SpawnError> {
    for part in parts {
        if part.as_bytes().contains(&0) {
            return Err(SpawnError::Nul(field));
        }
        texts.extend_from_slice(part.as_bytes());
    }
    texts.push(0);
    Ok(())
}

fn push_u32(frame: &mut Vec<u8>, number: usize) {
    // Lengths are below MAX_FRAME_BYTES; a longer frame is rejected before it is sent.
    frame.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_up_like_execvp() {
        let candidates_of = |program: &str, path: Option<&str>| {
            let command = CommandSpec {
                program: program.into(),
                env: path
                    .map(|path| ("PATH".into(), path.into()))
                    .into_iter()
                    .collect(),
                ..CommandSpec::default()
            };
            command.candidates()
        };
        assert_eq!(
            candidates_of("ls", Some("/a:/b/:")),
            ["/a/ls", "/b/ls", "./ls"]
        );
        assert_eq!(candidates_of("./ls", Some("/a")), ["./ls"]);
        assert_eq!(candidates_of("ls", None), ["/bin/ls", "/usr/bin/ls"]);
    }
}

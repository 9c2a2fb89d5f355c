//! The command that the server sends to the spawner: one frame, with descriptors attached.

use std::{
    ffi::{CString, OsStr, OsString},
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
};

use crate::sandbox_setup::SandboxSetup;

/// Everything that starting a command needs. The spawner looks up and validates nothing.
#[derive(Debug)]
pub struct CommandSpec {
    /// Paths to try for the program, in order.
    pub candidates: Vec<CString>,
    /// Arguments, including the program's name.
    pub argv: Vec<CString>,
    /// `NAME=value` pairs.
    pub env: Vec<CString>,
    /// Working directory.
    pub cwd: CString,
    /// Standard input.
    pub stdin: OwnedFd,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
    /// Whether the standard descriptors are a terminal, which becomes the controlling terminal.
    pub terminal: bool,
    /// Descriptors that the command inherits in addition to the standard ones.
    pub inherited_fds: Vec<InheritedFd>,
    /// Resource limits.
    pub limits: Vec<ResourceLimit>,
    /// Sandbox set-up to apply between clone and exec.
    pub sandbox_setup: Option<SandboxSetup>,
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
    pub resource: LimitedResource,
    /// The limit.
    pub value: u64,
}

/// A resource that can be limited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LimitedResource {
    /// CPU time in seconds.
    Cpu,
    /// Private writable memory in bytes.
    Data,
    /// Processes of the account.
    Processes,
    /// Open descriptors.
    OpenFiles,
    /// Size of a written file in bytes.
    FileSize,
}

impl LimitedResource {
    fn number(self) -> u32 {
        match self {
            Self::Cpu => libc::RLIMIT_CPU,
            Self::Data => libc::RLIMIT_DATA,
            Self::Processes => libc::RLIMIT_NPROC,
            Self::OpenFiles => libc::RLIMIT_NOFILE,
            Self::FileSize => libc::RLIMIT_FSIZE,
        }
    }
}

/// Most descriptors in addition to the standard ones.
pub const MAX_EXTRA: usize = 4;
/// Most limits: one of each resource.
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
    /// Encodes everything except the descriptors.
    pub fn encode(&self) -> Vec<u8> {
        let texts = || {
            std::iter::once(&self.cwd)
                .chain(&self.candidates)
                .chain(&self.argv)
                .chain(&self.env)
        };
        let setup = self.sandbox_setup.as_ref();
        let setup_fds = setup.map_or(0, |one| one.descriptors().len());
        let setup = setup.map_or_else(Vec::new, SandboxSetup::encode);
        let texts_bytes = texts().map(|text| text.as_bytes().len() + 1).sum::<usize>();
        let body = HEAD_BYTES + texts_bytes + setup.len();
        let mut frame = Vec::with_capacity(PREFIX_BYTES + body);
        push_u32(&mut frame, body);
        push_u32(&mut frame, 4 + self.inherited_fds.len() + setup_fds);
        push_u32(&mut frame, usize::from(self.terminal));
        push_u32(&mut frame, self.limits.len());
        for index in 0..MAX_LIMITS {
            let limit = self.limits.get(index);
            push_u32(
                &mut frame,
                limit.map_or(0, |limit| limit.resource.number() as usize),
            );
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
        push_u32(&mut frame, self.candidates.len());
        push_u32(&mut frame, self.argv.len());
        push_u32(&mut frame, self.env.len());
        push_u32(&mut frame, setup.len());
        for text in texts() {
            frame.extend_from_slice(text.as_bytes_with_nul());
        }
        frame.extend_from_slice(&setup);
        frame
    }

    /// Returns the descriptors in the order in which they are sent.
    pub fn descriptors<'a>(&'a self, control: BorrowedFd<'a>) -> Vec<BorrowedFd<'a>> {
        use std::os::fd::AsFd;

        let standard = [
            control,
            self.stdin.as_fd(),
            self.stdout.as_fd(),
            self.stderr.as_fd(),
        ];
        standard
            .into_iter()
            .chain(self.inherited_fds.iter().map(|extra| extra.fd.as_fd()))
            .chain(
                self.sandbox_setup
                    .iter()
                    .flat_map(SandboxSetup::descriptors),
            )
            .collect()
    }

    /// Returns the paths at which `execvp` would look for `program`.
    pub fn candidates(program: &OsStr, path: Option<&OsStr>) -> Vec<OsString> {
        if program.as_bytes().contains(&b'/') {
            return vec![program.to_owned()];
        }
        let path = path.unwrap_or(OsStr::new("/bin:/usr/bin"));
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

fn push_u32(frame: &mut Vec<u8>, number: usize) {
    // Lengths are below MAX_FRAME_BYTES; a longer frame is rejected before it is sent.
    frame.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

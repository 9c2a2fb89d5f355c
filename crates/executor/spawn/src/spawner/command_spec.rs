//! What the server sends its spawner: one frame a command, descriptors beside it.

use std::{
    ffi::{CString, OsStr, OsString},
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
};

use crate::enclosure::Enclosure;

/// Everything about a command that the kernel needs. Nothing is looked up or checked later.
#[derive(Debug)]
pub struct Spec {
    /// Paths to try for the program, in order.
    pub candidates: Vec<CString>,
    /// Arguments, the name of the program included.
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
    /// The standard descriptors are a terminal, which becomes the controlling one.
    pub terminal: bool,
    /// Descriptors beside the standard ones.
    pub extra: Vec<Extra>,
    /// Resource limits.
    pub limits: Vec<ResourceLimit>,
    /// What encloses it.
    pub enclosure: Option<Enclosure>,
}

/// A descriptor that the command inherits beside the standard ones.
#[derive(Debug)]
pub struct Extra {
    /// The descriptor.
    pub fd: OwnedFd,
    /// Its number in the command.
    pub target: u8,
}

/// One resource limit, soft and hard.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ResourceLimit {
    /// Of what.
    pub resource: LimitedResource,
    /// How much.
    pub value: u64,
}

/// What can be limited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LimitedResource {
    /// Seconds of processor time.
    Cpu,
    /// Bytes of private writable memory.
    Data,
    /// Processes of the account.
    Processes,
    /// Open descriptors.
    OpenFiles,
    /// Bytes of a file that is written.
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

/// Most descriptors beside the standard ones.
pub const MAX_EXTRA: usize = 4;
/// Most limits: one of each.
pub(super) const MAX_LIMITS: usize = 5;
/// Length of the body and number of descriptors.
pub(super) const PREFIX_BYTES: usize = 8;
/// Most descriptors of an enclosure: its ruleset and its door.
const MAX_ENCLOSURE_FDS: usize = 2;
/// Most descriptors that travel with a frame.
pub const MAX_FDS: usize = 4 + MAX_EXTRA + MAX_ENCLOSURE_FDS;
/// Flags, limits, extra targets, how many texts of each kind follow, and how many bytes of an
/// enclosure after them.
pub(super) const HEAD_BYTES: usize = 4 + 4 + MAX_LIMITS * 12 + 4 + MAX_EXTRA * 4 + 4 * 4;
/// Longest frame: the kernel takes at most 6 MiB of arguments and environment, and thousands of
/// steps of an enclosure are less.
pub const MAX_FRAME_BYTES: usize = 16 << 20;

impl Spec {
    /// Encodes everything but the descriptors.
    pub fn encode(&self) -> Vec<u8> {
        let texts = || {
            std::iter::once(&self.cwd)
                .chain(&self.candidates)
                .chain(&self.argv)
                .chain(&self.env)
        };
        let enclosure = self.enclosure.as_ref();
        let enclosure_fds = enclosure.map_or(0, |one| one.descriptors().len());
        let enclosure = enclosure.map_or_else(Vec::new, Enclosure::encode);
        let texts_bytes = texts().map(|text| text.as_bytes().len() + 1).sum::<usize>();
        let body = HEAD_BYTES + texts_bytes + enclosure.len();
        let mut frame = Vec::with_capacity(PREFIX_BYTES + body);
        push_u32(&mut frame, body);
        push_u32(&mut frame, 4 + self.extra.len() + enclosure_fds);
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
        push_u32(&mut frame, self.extra.len());
        for index in 0..MAX_EXTRA {
            push_u32(
                &mut frame,
                self.extra
                    .get(index)
                    .map_or(0, |extra| usize::from(extra.target)),
            );
        }
        push_u32(&mut frame, self.candidates.len());
        push_u32(&mut frame, self.argv.len());
        push_u32(&mut frame, self.env.len());
        push_u32(&mut frame, enclosure.len());
        for text in texts() {
            frame.extend_from_slice(text.as_bytes_with_nul());
        }
        frame.extend_from_slice(&enclosure);
        frame
    }

    /// Returns the descriptors in the order in which they travel.
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
            .chain(self.extra.iter().map(|extra| extra.fd.as_fd()))
            .chain(self.enclosure.iter().flat_map(Enclosure::descriptors))
            .collect()
    }

    /// Returns the paths where `program` may be, as `execvp` would try them.
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
    // Lengths are below MAX_FRAME_BYTES; a longer frame is refused before it is sent.
    frame.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

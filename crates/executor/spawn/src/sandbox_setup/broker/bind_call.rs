//! Handles `bind`, which creates a socket at a path.
//!
//! There is no `bindat`: the kernel resolves the path of a socket from the working directory or the
//! root, however it was resolved before. So a thread with its own working directory and Landlock
//! domain makes the call; the domain keeps the path from leading elsewhere.

use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    ptr,
};

use super::{
    PathBuffers,
    guard_table::GuardTable,
    seccomp_notification::{BrokerReply, Caller},
    target_entry::{PathBase, PathBuffer, TargetEntry},
};
use crate::raw::{self, Errno, OwnedDescriptor};

/// A call of `bind`.
#[derive(Debug)]
pub(super) struct BindCall {
    /// The caller's descriptor.
    pub(super) socket: c_int,
    /// Address of the socket address in the caller's memory.
    pub(super) address: u64,
    /// Length of the socket address.
    pub(super) length: c_int,
}

impl BindCall {
    /// Binds the caller's socket if the address is a path. `None`: let the kernel handle it.
    pub(super) fn answer(
        self,
        caller: &Caller<'_>,
        guards: &GuardTable,
        buffers: &mut PathBuffers,
    ) -> Option<BrokerReply> {
        let address = UnixAddress::read(caller, self.address, self.length)?;
        address.copy_path(&mut buffers.first)?;
        let socket = caller.duplicate(self.socket)?;
        // Sockets of other families fail with such an address; the kernel returns their error.
        if domain(&socket).ok()? != libc::AF_UNIX {
            return None;
        }
        caller.adopt_umask()?;
        let start = caller.directory(libc::AT_FDCWD)?;
        let target = TargetEntry::find(
            caller,
            PathBase::CallerFd(libc::AT_FDCWD),
            &mut buffers.first,
            0,
        )?;
        caller.confirm()?;
        if let Some(refusal) = target.refusal(guards) {
            return Some(refusal);
        }
        // Peers can see the address a socket was bound to, so it must be the caller's. The kernel
        // then resolves the path again, and may end up elsewhere. That is acceptable below the
        // directory found here, for a name that is guarded nowhere.
        let bound = if target.may_be_forbidden_elsewhere(guards) {
            let name = UnixAddress::of(target.name.to_bytes())?;
            bind_below(&socket, &target.directory, &target.directory, &name)
        } else {
            bind_below(&socket, &target.directory, &start, &address)
        };
        Some(BrokerReply::of(bound))
    }
}

/// A unix socket address with a path.
#[derive(Debug)]
pub(super) struct UnixAddress {
    bytes: [u8; ADDRESS],
    length: usize,
}

impl UnixAddress {
    /// Copies an address from the caller. `None`: it has another family, or is too long.
    fn read(caller: &Caller<'_>, address: u64, length: c_int) -> Option<Self> {
        let length = usize::try_from(length).ok()?;
        let mut bytes = [0; ADDRESS];
        caller.read(usize::try_from(address).ok()?, bytes.get_mut(..length)?)?;
        let (family, _) = bytes.split_first_chunk()?;
        let is_unix = length >= FAMILY && *family == UNIX.to_ne_bytes();
        is_unix.then_some(Self { bytes, length })
    }

    /// Builds an address. `None`: the path is too long.
    pub(super) fn of(path: &[u8]) -> Option<Self> {
        let length = FAMILY + path.len();
        let mut bytes = [0; ADDRESS];
        let (family, rest) = bytes.split_first_chunk_mut()?;
        *family = UNIX.to_ne_bytes();
        rest.get_mut(..path.len())?.copy_from_slice(path);
        Some(Self { bytes, length })
    }

    /// Copies the path. `None`: the kernel chooses the name, or the name is abstract.
    fn copy_path(&self, path: &mut PathBuffer) -> Option<()> {
        let text = self.bytes.get(FAMILY..self.length)?;
        let text = text.split(|byte| *byte == 0).next()?;
        if text.is_empty() {
            return None;
        }
        let (copy, terminator) = path.buffer().split_at_mut_checked(text.len())?;
        copy.copy_from_slice(text);
        *terminator.first_mut()? = 0;
        Some(())
    }

    /// Binds a socket to this address.
    pub(super) fn bind(&self, socket: c_int) -> Result<usize, Errno> {
        let address = self.bytes.as_ptr() as usize;
        let args = [raw::int_arg(socket), address, self.length];
        raw::syscall(libc::SYS_bind, args)
    }
}

/// Returns the address family of a socket.
fn domain(socket: &OwnedDescriptor) -> Result<c_int, Errno> {
    let mut domain: c_int = 0;
    let mut length: libc::socklen_t = 4;
    let args = [
        raw::int_arg(socket.number()),
        raw::int_arg(libc::SOL_SOCKET),
        raw::int_arg(libc::SO_DOMAIN),
        &raw mut domain as usize,
        &raw mut length as usize,
    ];
    raw::syscall(libc::SYS_getsockopt, args)?;
    Ok(domain)
}

/// Size of the address family, the first field of every address.
const FAMILY: usize = size_of::<libc::sa_family_t>();

/// Size of the largest unix address.
const ADDRESS: usize = size_of::<libc::sockaddr_un>();

/// The address family of unix sockets.
const UNIX: libc::sa_family_t = 1;

/// A call that the thread makes, and its result.
#[derive(Debug)]
struct BrokerCall<'a> {
    socket: c_int,
    directory: c_int,
    start: c_int,
    address: &'a UnixAddress,
    result: Result<usize, Errno>,
}

/// Binds a socket to an address relative to `start`, if it resolves to or below `directory`.
/// `EACCES`: it resolves elsewhere by now.
pub(super) fn bind_below(
    socket: &OwnedDescriptor,
    directory: &OwnedDescriptor,
    start: &OwnedDescriptor,
    address: &UnixAddress,
) -> Result<usize, Errno> {
    let mut call = BrokerCall {
        socket: socket.number(),
        directory: directory.number(),
        start: start.number(),
        address,
        result: Err(libc::EIO),
    };
    let mut stack = MaybeUninit::<ThreadStack>::uninit();
    let top = stack.as_mut_ptr().wrapping_add(1).cast();
    let argument = ptr::from_mut(&mut call).cast();
    // No `CLONE_FS`, so the thread has its own working directory. A thread need not be reaped.
    let flags = libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_FILES | libc::CLONE_VFORK;
    // SAFETY: this thread is suspended until the other has exited, so the other has exclusive use
    // of stack and call. It makes raw system calls only, and does not return.
    unsafe { raw::clone_vm(enter, top, flags, argument, ptr::null()) }?;
    call.result
}

extern "C" fn enter(argument: *mut c_void) -> c_int {
    // SAFETY: the call belongs to a thread that is suspended meanwhile.
    let call = unsafe { &mut *argument.cast::<BrokerCall<'_>>() };
    call.result = run(call);
    loop {
        // Exits the thread only, unlike `exit_group`.
        let _ = raw::syscall(libc::SYS_exit, []);
    }
}

fn run(call: &BrokerCall<'_>) -> Result<usize, Errno> {
    restrict_to(call.directory)?;
    raw::syscall(libc::SYS_fchdir, [raw::int_arg(call.start)])?;
    call.address.bind(call.socket)
}

/// Lets this thread create sockets only at or below a directory.
fn restrict_to(directory: c_int) -> Result<(), Errno> {
    let handled = [MAKE_SOCKET];
    let args = [handled.as_ptr() as usize, size_of_val(&handled), 0];
    let ruleset = raw::syscall(libc::SYS_landlock_create_ruleset, args);
    let ruleset = ruleset.map(OwnedDescriptor::from_call)?;
    let fd = raw::int_arg(ruleset.number());
    let rule = PathRule {
        access: MAKE_SOCKET,
        directory,
    };
    let rule = &raw const rule as usize;
    let args = [fd, PATH_BENEATH, rule, 0];
    raw::syscall(libc::SYS_landlock_add_rule, args)?;
    // Required by the kernel. It applies to this thread only.
    raw::prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    raw::syscall(libc::SYS_landlock_restrict_self, [fd, 0])?;
    Ok(())
}

/// The kernel's `landlock_path_beneath_attr`.
#[derive(Debug)]
#[repr(C, packed)]
struct PathRule {
    access: u64,
    directory: c_int,
}

/// Stack for a few nested calls. The kernel requires an aligned end.
#[repr(C, align(16))]
struct ThreadStack([u8; 8 << 10]);

/// `LANDLOCK_ACCESS_FS_MAKE_SOCK`.
const MAKE_SOCKET: u64 = 1 << 9;

/// `LANDLOCK_RULE_PATH_BENEATH`.
const PATH_BENEATH: usize = 1;

#[cfg(test)]
mod tests {
    use std::{os::fd::AsRawFd, path::Path};

    use super::{OwnedDescriptor, UnixAddress, bind_below};
    use crate::{raw, sandbox_setup::broker::tests::open_directory};

    /// Binds a new socket to `path`, relative to `start`, if that is at or below `directory`.
    fn bind(directory: &Path, start: &Path, path: &str) -> Result<usize, i32> {
        let [directory, start] = [directory, start]
            .map(|path| OwnedDescriptor::duplicate(open_directory(path).as_raw_fd()).unwrap());
        let args = [libc::AF_UNIX, libc::SOCK_STREAM, 0].map(raw::int_arg);
        let socket = raw::syscall(libc::SYS_socket, [args[0], args[1], args[2], 0, 0, 0]).unwrap();
        let socket = OwnedDescriptor::from_call(socket);
        let address = UnixAddress::of(path.as_bytes()).unwrap();
        bind_below(&socket, &directory, &start, &address)
    }

    #[test]
    fn socket_path_that_resolves_elsewhere_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| root.path().join(name));
        std::fs::create_dir_all(one.join("below")).unwrap();
        std::fs::create_dir(&two).unwrap();
        if bind(&one, &one, "a") == Err(libc::ENOSYS) {
            eprintln!("not run: this kernel has no Landlock");
            return;
        }
        let here = std::env::current_dir().unwrap();
        assert_eq!(bind(&one, &two, "../one/b"), Ok(0));
        assert_eq!(bind(&one, &one, "below/c"), Ok(0));
        assert_eq!(bind(&one, &one, one.join("d").to_str().unwrap()), Ok(0));
        assert_eq!(bind(&one, &two, "e"), Err(libc::EACCES));
        assert_eq!(bind(&one, &one, "../f"), Err(libc::EACCES));
        assert_eq!(bind(&one, &one, "a"), Err(libc::EADDRINUSE));
        assert_eq!(std::fs::read_dir(&two).unwrap().count(), 0);
        // The test's own thread is not restricted.
        assert_eq!(std::env::current_dir().unwrap(), here);
        let free = std::os::unix::net::UnixListener::bind(two.join("g"));
        free.unwrap();
    }
}

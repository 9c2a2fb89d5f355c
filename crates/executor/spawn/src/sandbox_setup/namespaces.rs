//! Sets up new namespaces: user id mapping, loopback and listening sockets.

use std::ffi::{CStr, c_int};

use super::EncodedSetup;
use crate::raw::{self, Errno, NumberText, int_arg};

/// Maps the account to the same ids inside the user namespace.
pub(crate) fn map_account(user: u32, group: u32) -> Result<(), Errno> {
    write_file(c"/proc/self/uid_map", &id_map_line(user))?;
    // Without privileges, the kernel allows a group mapping only after `setgroups` is denied.
    write_file(c"/proc/self/setgroups", b"deny")?;
    write_file(c"/proc/self/gid_map", &id_map_line(group))
}

/// Returns the user id and group id of this process.
pub(crate) fn current_account() -> (u32, u32) {
    let number = |call| {
        let number = raw::syscall(call, [0; 6]).unwrap_or(0);
        u32::try_from(number).unwrap_or(0)
    };
    (number(libc::SYS_geteuid), number(libc::SYS_getegid))
}

/// Sets the umask and returns the previous one.
pub(crate) fn set_umask(mask: u32) -> u32 {
    let old = raw::syscall(libc::SYS_umask, [mask as usize, 0, 0, 0, 0, 0]);
    old.map_or(0o22, |old| u32::try_from(old).unwrap_or(0o22))
}

/// Formats `id id 1`, padded with leading spaces, which the kernel skips.
fn id_map_line(number: u32) -> [u8; 24] {
    let mut line = [b' '; 24];
    let digits = NumberText::decimal(u64::from(number));
    let digits = digits.text().to_bytes();
    for end in [10, 21] {
        for (place, digit) in line[..end].iter_mut().rev().zip(digits.iter().rev()) {
            *place = *digit;
        }
    }
    line[22] = b'1';
    line[23] = b'\n';
    line
}

fn write_file(path: &CStr, text: &[u8]) -> Result<(), Errno> {
    let flags = int_arg(libc::O_WRONLY | libc::O_CLOEXEC);
    let args = [
        int_arg(libc::AT_FDCWD),
        path.as_ptr() as usize,
        flags,
        0,
        0,
        0,
    ];
    let file = raw::to_i32(raw::syscall(libc::SYS_openat, args)?);
    let args = [int_arg(file), text.as_ptr() as usize, text.len(), 0, 0, 0];
    let written = raw::syscall(libc::SYS_write, args);
    raw::close(file)?;
    written.map(|_| ())
}

/// Most listening sockets. The kernel limits the descriptors in one message.
const MAX_LISTENERS: usize = 64;
/// Length of the accept queue.
const BACKLOG: c_int = 1024;

/// Brings the loopback interface up and sends the listening sockets to the server.
pub(crate) fn set_up_network(parts: &EncodedSetup<'_>, door: c_int) -> Result<(), Errno> {
    bring_loopback_up()?;
    let mut sockets = [0; MAX_LISTENERS];
    let mut count = 0;
    for port in parts.ports() {
        let place = sockets.get_mut(count).ok_or(libc::E2BIG)?;
        *place = listen(port)?;
        count += 1;
    }
    let sockets = &sockets[..count];
    if !sockets.is_empty() {
        raw::send_descriptors(door, sockets)?;
    }
    for socket in sockets {
        raw::close(*socket)?;
    }
    Ok(())
}

fn bring_loopback_up() -> Result<(), Errno> {
    // The kernel's `ifreq`: a name of 16 bytes, followed by flags.
    let mut request = [0_u8; size_of::<libc::ifreq>()];
    request[..2].copy_from_slice(b"lo");
    let flags = u16::try_from(libc::IFF_UP).unwrap_or(0);
    request[libc::IFNAMSIZ..libc::IFNAMSIZ + 2].copy_from_slice(&flags.to_ne_bytes());
    let socket = socket(libc::AF_UNIX, libc::SOCK_DGRAM)?;
    let command = usize::try_from(libc::SIOCSIFFLAGS).unwrap_or(0);
    let args = [int_arg(socket), command, request.as_ptr() as usize, 0, 0, 0];
    let done = raw::syscall(libc::SYS_ioctl, args);
    raw::close(socket)?;
    done.map(|_| ())
}

fn listen(port: u16) -> Result<c_int, Errno> {
    let socket = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    let [high, low] = port.to_be_bytes();
    let [family, zero] = u16::try_from(libc::AF_INET).unwrap_or(0).to_ne_bytes();
    // The kernel's `sockaddr_in`: family, port, address, and eight bytes of padding.
    let address = [
        family, zero, high, low, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let place = address.as_ptr() as usize;
    raw::syscall(
        libc::SYS_bind,
        [int_arg(socket), place, address.len(), 0, 0, 0],
    )?;
    raw::syscall(
        libc::SYS_listen,
        [int_arg(socket), int_arg(BACKLOG), 0, 0, 0, 0],
    )?;
    Ok(socket)
}

fn socket(family: c_int, kind: c_int) -> Result<c_int, Errno> {
    let kind = int_arg(kind | libc::SOCK_CLOEXEC);
    raw::syscall(libc::SYS_socket, [int_arg(family), kind, 0, 0, 0, 0]).map(raw::to_i32)
}

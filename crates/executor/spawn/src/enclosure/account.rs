//! The account of an enclosed command in a namespace of users.

use std::ffi::CStr;

use crate::raw::{self, Digits, Errno, int};

/// Gives the account the same numbers inside that it has outside.
pub(crate) fn map_account(user: u32, group: u32) -> Result<(), Errno> {
    write(c"/proc/self/uid_map", &line(user))?;
    // Without privileges outside, groups can be mapped only once nobody can leave any.
    write(c"/proc/self/setgroups", b"deny")?;
    write(c"/proc/self/gid_map", &line(group))
}

/// Returns the numbers of this process's account and group.
pub(crate) fn own_account() -> (u32, u32) {
    let number = |call| {
        let number = raw::numbers(call, [0; 6]).unwrap_or(0);
        u32::try_from(number).unwrap_or(0)
    };
    (number(libc::SYS_geteuid), number(libc::SYS_getegid))
}

/// Sets the umask and returns the one before.
pub(crate) fn set_umask(mask: u32) -> u32 {
    let old = raw::numbers(libc::SYS_umask, [mask as usize, 0, 0, 0, 0, 0]);
    old.map_or(0o22, |old| u32::try_from(old).unwrap_or(0o22))
}

/// `number number 1`, with spaces in front: the kernel skips them.
fn line(number: u32) -> [u8; 24] {
    let mut line = [b' '; 24];
    let digits = Digits::decimal(u64::from(number));
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

fn write(path: &CStr, text: &[u8]) -> Result<(), Errno> {
    let flags = int(libc::O_WRONLY | libc::O_CLOEXEC);
    let args = [int(libc::AT_FDCWD), path.as_ptr() as usize, flags, 0, 0, 0];
    let file = raw::to_i32(raw::numbers(libc::SYS_openat, args)?);
    let args = [int(file), text.as_ptr() as usize, text.len(), 0, 0, 0];
    let written = raw::numbers(libc::SYS_write, args);
    raw::close(file)?;
    written.map(|_| ())
}

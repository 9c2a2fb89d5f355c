//! Numbers as text, without allocating.

use std::ffi::{CStr, c_int};

use super::{Errno, open_read};

/// A number as text.
#[derive(Debug)]
pub(crate) struct Digits {
    /// The text is at the end, a zero byte behind it.
    bytes: [u8; Self::BYTES],
    start: usize,
}

impl Digits {
    /// 64 bits in octal are 22 digits.
    const BYTES: usize = 24;

    pub(crate) fn decimal(number: u64) -> Self {
        Self::new(number, 10)
    }

    pub(crate) fn octal(number: u64) -> Self {
        Self::new(number, 8)
    }

    fn new(mut number: u64, base: u64) -> Self {
        let mut bytes = [0; Self::BYTES];
        let mut start = Self::BYTES - 1;
        loop {
            start -= 1;
            bytes[start] = b'0' + u8::try_from(number % base).unwrap_or(0);
            number /= base;
            if number == 0 {
                return Self { bytes, start };
            }
        }
    }

    pub(crate) fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes[self.start..]).unwrap_or_default()
    }
}

/// Opens a file about a process, to read it.
pub(crate) fn open_of_process(pid: i32, name: &CStr) -> Result<c_int, Errno> {
    let mut path = [0; 48];
    let number = Digits::decimal(u64::from(pid.unsigned_abs()));
    let parts = [b"/proc/", number.text().to_bytes(), b"/", name.to_bytes()];
    // One byte less than there are, so that there is an end.
    let room = path.iter_mut().take(47);
    for (place, byte) in room.zip(parts.into_iter().flatten()) {
        *place = *byte;
    }
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| libc::ENAMETOOLONG)?;
    open_read(path, 0)
}

/// Reads a number at the start of a text.
pub(crate) fn leading_number(text: &[u8]) -> Option<i32> {
    let mut number = 0_i32;
    let mut digits = 0;
    for byte in text.iter().take_while(|byte| byte.is_ascii_digit()) {
        number = number
            .checked_mul(10)?
            .checked_add(i32::from(byte - b'0'))?;
        digits += 1;
    }
    (digits > 0).then_some(number)
}

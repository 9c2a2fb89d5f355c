//! What a capture printed, taken apart.

use std::{collections::BTreeMap, ffi::OsString, fmt, os::unix::ffi::OsStringExt};

use super::capture::{END, EXPORTS, RESTORE};

/// The state of a login shell.
#[derive(Clone, Eq, PartialEq)]
pub struct Captured {
    /// Its exported variables.
    pub exports: BTreeMap<OsString, OsString>,
    /// Text that restores the rest when the same kind of shell sources it.
    pub restore: Vec<u8>,
}

impl fmt::Debug for Captured {
    /// Shows no values: they hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured")
            .field("exports", &self.exports.keys())
            .field("restore_bytes", &self.restore.len())
            .finish()
    }
}

/// Reads the state from all that a capture wrote to stdout.
///
/// Returns nothing if that is more than [`MAX_CAPTURE_BYTES`], or if the capture did not get to its
/// end.
pub fn captured(stdout: &[u8]) -> Option<Captured> {
    if stdout.len() > MAX_CAPTURE_BYTES {
        return None;
    }
    let (_, state) = split(stdout, EXPORTS)?;
    let (exports, state) = split(state, RESTORE)?;
    let (restore, _) = split(state, END)?;
    let exports: BTreeMap<_, _> = exports
        .split(|&byte| byte == 0)
        .filter_map(variable)
        .collect();
    // Every shell exports something, so that no variables mean no list of them.
    (!exports.is_empty()).then(|| Captured {
        exports,
        restore: restore.to_vec(),
    })
}

fn variable(entry: &[u8]) -> Option<(OsString, OsString)> {
    let equals = entry
        .iter()
        .position(|&byte| byte == b'=')
        .filter(|&at| at > 0)?;
    let (name, value) = (&entry[..equals], &entry[equals + 1..]);
    Some((
        OsString::from_vec(name.to_vec()),
        OsString::from_vec(value.to_vec()),
    ))
}

/// Returns what is before and after the first `marker`.
fn split<'a>(bytes: &'a [u8], marker: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = bytes
        .windows(marker.len())
        .position(|window| window == marker)?;
    Some((&bytes[..at], &bytes[at + marker.len()..]))
}

/// Most that a capture may print: the state is kept in memory, 16 of them per session.
pub const MAX_CAPTURE_BYTES: usize = 512 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_found_between_noise() {
        let stdout = printed(
            b"Welcome\0!\n",
            b"A=1\0B=x\ny=z\0C=\0",
            b"alias a='b'\n",
            b"\nbye",
        );
        let expected = Captured {
            exports: [("A", "1"), ("B", "x\ny=z"), ("C", "")]
                .map(|(name, value)| (name.into(), value.into()))
                .into(),
            restore: b"alias a='b'\n".to_vec(),
        };
        assert_eq!(captured(&stdout), Some(expected));
    }

    #[test]
    fn bytes_that_are_not_text_survive() {
        let state = captured(&printed(b"", b"A=\xff\xfe\0", b"f () { \xff; }", b"")).unwrap();
        assert_eq!(
            state.exports[&OsString::from("A")],
            OsString::from_vec(vec![0xff, 0xfe])
        );
        assert_eq!(state.restore, b"f () { \xff; }");
    }

    #[test]
    fn what_is_no_variable_is_skipped() {
        let state = captured(&printed(b"", b"A=1\0nonsense\0=x\0\0", b"", b"")).unwrap();
        assert_eq!(state.exports.len(), 1);
    }

    #[test]
    fn an_unfinished_capture_is_a_failure() {
        let whole = printed(b"", b"A=1\0", b"x", b"");
        for length in 0..whole.len() {
            assert_eq!(captured(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(
            captured(&printed(b"", b"", b"x", b"")),
            None,
            "no variables"
        );
    }

    #[test]
    fn too_much_output_is_a_failure() {
        let frame = printed(b"", b"A=1\0", b"", b"").len();
        let fits = vec![b'#'; MAX_CAPTURE_BYTES - frame];
        assert!(captured(&printed(&fits, b"A=1\0", b"", b"")).is_some());
        assert_eq!(captured(&printed(&fits, b"A=1\0", b"#", b"")), None);
    }

    #[test]
    fn values_are_not_shown() {
        let state = captured(&printed(b"", b"API_KEY=hunter2\0", b"", b"")).unwrap();
        assert!(!format!("{state:?}").contains("hunter2"));
    }

    fn printed(before: &[u8], exports: &[u8], restore: &[u8], after: &[u8]) -> Vec<u8> {
        [before, EXPORTS, exports, RESTORE, restore, END, after].concat()
    }
}

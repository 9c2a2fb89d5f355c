//! What the kernel tells.

use std::{
    ffi::OsStr,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
};

use rustix::{
    fs::inotify::{ReadFlags, Reader},
    io::Errno,
};

/// The kernel's number of a watched directory. It stays with the directory when that is renamed.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Descriptor(pub(crate) i32);

/// Ties the two ends of a rename together.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Cookie(pub(crate) u32);

/// A change in a watched directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<'a> {
    /// The directory.
    pub(crate) directory: Descriptor,
    /// What has happened.
    pub(crate) what: ReadFlags,
    /// Both ends of a rename have the same.
    pub(crate) cookie: Cookie,
    /// The entry it has happened to; the directory itself if there is none.
    pub(crate) name: Option<&'a OsStr>,
}

/// Reads what the kernel has queued, or as much as its queue can hold. `None` stands for events that
/// were lost.
pub(crate) fn read(
    queue: &OwnedFd,
    buffer: &mut [MaybeUninit<u8>],
    mut handle: impl FnMut(Option<Event<'_>>),
) {
    let mut reader = Reader::new(queue, buffer);
    let mut reads = 0;
    loop {
        if reader.is_buffer_empty() {
            reads += 1;
            if reads > READS_AT_ONCE {
                return;
            }
        }
        let raw = match reader.next() {
            Ok(raw) => raw,
            Err(Errno::INTR) => continue,
            // Nothing is left. Other errors it has none.
            Err(_) => return,
        };
        if raw.events().contains(ReadFlags::QUEUE_OVERFLOW) {
            handle(None);
            continue;
        }
        handle(Some(Event {
            directory: Descriptor(raw.wd()),
            what: raw.events(),
            cookie: Cookie(raw.cookie()),
            name: raw
                .file_name()
                .map(|name| OsStr::from_bytes(name.to_bytes())),
        }));
    }
}

/// Makes a buffer to read into.
pub(crate) fn buffer() -> Vec<MaybeUninit<u8>> {
    vec![MaybeUninit::uninit(); BUFFER_BYTES]
}

/// A good thousand events.
const BUFFER_BYTES: usize = 64 << 10;
/// Reads until somebody else gets his turn.
const READS_AT_ONCE: usize = 16;

//! The call that makes a socket by binding it to a path.

use std::ffi::c_int;

use super::{
    answer::Room,
    apart::bind_below,
    caller::Caller,
    descriptor::Descriptor,
    guards::Guards,
    notice::Answer,
    path::Path,
    place::{Place, Start},
};
use crate::raw::{self, Errno};

/// A call of `bind`.
#[derive(Debug)]
pub(super) struct Binding {
    /// The caller's descriptor.
    pub(super) socket: c_int,
    /// Where the address is.
    pub(super) address: u64,
    /// How long it is.
    pub(super) length: c_int,
}

impl Binding {
    /// Binds the caller's socket if the address is a path. `None`: the kernel has the say.
    pub(super) fn answer(
        self,
        caller: &Caller<'_>,
        guards: &Guards,
        room: &mut Room,
    ) -> Option<Answer> {
        let address = Address::read(caller, self.address, self.length)?;
        address.copy_path(&mut room.first)?;
        let socket = caller.duplicate(self.socket)?;
        // What other sockets make of such an address is an error, and theirs to say.
        if domain(&socket).ok()? != libc::AF_UNIX {
            return None;
        }
        caller.adopt_umask()?;
        let start = caller.directory(libc::AT_FDCWD)?;
        let place = Place::find(caller, Start::Theirs(libc::AT_FDCWD), &mut room.first, 0)?;
        caller.confirm()?;
        if let Some(refusal) = place.refusal(guards) {
            return Some(refusal);
        }
        // A socket tells others what it was bound to, so it is to be what the caller wrote. The
        // kernel then follows the path anew, and may end up elsewhere. That can be allowed below the
        // directory that was found, for a name that is guarded nowhere.
        let bound = if place.may_be_forbidden_elsewhere(guards) {
            let name = Address::of(place.name.to_bytes())?;
            bind_below(&socket, &place.directory, &place.directory, &name)
        } else {
            bind_below(&socket, &place.directory, &start, &address)
        };
        Some(Answer::of(bound))
    }
}

/// The address of a path.
#[derive(Debug)]
pub(super) struct Address {
    bytes: [u8; ADDRESS],
    length: usize,
}

impl Address {
    /// Copies one of a caller's. `None`: it is of another family, or longer than any.
    fn read(caller: &Caller<'_>, address: u64, length: c_int) -> Option<Self> {
        let length = usize::try_from(length).ok()?;
        let mut bytes = [0; ADDRESS];
        caller.read(usize::try_from(address).ok()?, bytes.get_mut(..length)?)?;
        let (family, _) = bytes.split_first_chunk()?;
        let is_unix = length >= FAMILY && *family == UNIX.to_ne_bytes();
        is_unix.then_some(Self { bytes, length })
    }

    /// Makes one. `None`: the path is too long.
    pub(super) fn of(path: &[u8]) -> Option<Self> {
        let length = FAMILY + path.len();
        let mut bytes = [0; ADDRESS];
        let (family, rest) = bytes.split_first_chunk_mut()?;
        *family = UNIX.to_ne_bytes();
        rest.get_mut(..path.len())?.copy_from_slice(path);
        Some(Self { bytes, length })
    }

    /// Copies the path out of it. `None`: the kernel is to choose a name, or it is none of a file.
    fn copy_path(&self, path: &mut Path) -> Option<()> {
        let text = self.bytes.get(FAMILY..self.length)?;
        let text = text.split(|byte| *byte == 0).next()?;
        if text.is_empty() {
            return None;
        }
        let (room, rest) = path.buffer().split_at_mut_checked(text.len())?;
        room.copy_from_slice(text);
        *rest.first_mut()? = 0;
        Some(())
    }

    /// Binds a socket to it.
    pub(super) fn bind(&self, socket: c_int) -> Result<usize, Errno> {
        let address = self.bytes.as_ptr() as usize;
        let args = [raw::int(socket), address, self.length, 0, 0, 0];
        raw::numbers(libc::SYS_bind, args)
    }
}

/// Which kind of addresses a socket has.
fn domain(socket: &Descriptor) -> Result<c_int, Errno> {
    let mut domain: c_int = 0;
    let mut length: libc::socklen_t = 4;
    let args = [
        raw::int(socket.number()),
        raw::int(libc::SOL_SOCKET),
        raw::int(libc::SO_DOMAIN),
        &raw mut domain as usize,
        &raw mut length as usize,
        0,
    ];
    raw::numbers(libc::SYS_getsockopt, args)?;
    Ok(domain)
}

/// Bytes of a family, which come first in every address.
const FAMILY: usize = size_of::<libc::sa_family_t>();

/// Most bytes of a unix address.
const ADDRESS: usize = size_of::<libc::sockaddr_un>();

/// The family of unix addresses.
const UNIX: libc::sa_family_t = 1;

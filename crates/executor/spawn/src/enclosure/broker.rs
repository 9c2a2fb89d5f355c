//! The broker: makes files, directories, links and sockets for an enclosed command, unless the name
//! is a guarded one.
//!
//! The command's own Landlock domain lets it make nothing, and its filter notifies of the calls that
//! would. The broker, outside of that domain, makes the same call in its stead.
//!
//! Two invariants carry the protection. Letting a call continue is always safe, whatever the caller
//! writes to its memory meanwhile: the kernel then makes nothing. And what the broker makes itself
//! is named by a descriptor of the directory, which it opened and compared with the guards, and by
//! its own copy of the last part of the path, which it compared, too. A socket is bound to the whole
//! path as it was written, but only at or below that directory, and to a name that is guarded nowhere.
//!
//! It shares the memory of a spawner: it never allocates, locks, panics or touches thread-local
//! state.
//!
//! Not here: which calls notify (`exec-sandbox` writes the filter).

mod answer;
mod apart;
mod bind;
mod caller;
mod descriptor;
mod guards;
mod link;
mod make;
mod name;
mod notice;
mod open;
mod path;
mod place;
#[cfg(test)]
mod tests;

pub(crate) use self::{answer::answer, guards::Guards, notice::prepare};

//! Which environment a command is for, and the way there.
//! Invariant: commands reach the environment that was asked for, or none: what cannot be reached is
//! never replaced by this machine.
//! Not here: what is done in the environment.

mod here;
mod launch;
mod open;
mod parting;
mod refusal;
mod route;
#[cfg(test)]
mod tests;
mod typed;
mod wanted;

pub use self::wanted::Where;
pub(crate) use self::{
    here::Socket,
    open::Place,
    parting::parting,
    route::{Route, Way, select},
};

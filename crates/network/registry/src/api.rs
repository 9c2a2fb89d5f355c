//! What is said to a registry and what it says, member by member.
//!
//! Readers ignore members they do not know, except in keys. Secrets are types that hide themselves.
//! Not here: who sends it (`registry`), who answers (`exec-hub`).

mod direct;
mod environment;
mod error;
mod noise;
mod object;
mod secret;

pub use self::{
    direct::{DIRECT_TRANSPORT, DirectRegister, DirectRegistered},
    environment::{EnvironmentId, EnvironmentIdError},
    error::{Code, ErrorBody, ErrorDetail},
    noise::{
        Connect, Connected, Register, Registered, SECURITY_PROFILE, STREAM_ID_HEADER, Validate,
        Validated,
    },
    object::read_object,
    secret::Secret,
};

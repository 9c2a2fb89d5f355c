//! Who is asking: the headers that a registry knows its callers by.
//!
//! Headers are made anew for each request, because secrets rotate and assertions age. Each way says
//! how far its secret may travel. No text shows a secret. Not here: where secrets are kept (the
//! product crate), signatures over requests (`sigv4`).

mod access_token;
mod account;
mod agent_identity;
mod error;
mod pipe;
mod reach;
mod sign_in;
mod stdin_token;
mod token;
mod traits;

pub use self::{
    access_token::{AccessToken, AccessTokenError},
    account::{AccountId, Fedramp},
    agent_identity::{AgentIdentity, AgentIdentityError, AgentIdentitySettings},
    error::CredentialError,
    pipe::{CredentialPipe, PipeEnd, PipeError},
    reach::{Reach, ReachError},
    sign_in::{SignIn, SignInError},
    stdin_token::{ChatGptToken, RegistrationBearer, StdinTokenError},
    token::{ApiKey, Bearer, HarnessToken, Token, TokenError},
    traits::{Bodies, Credentials, Outgoing},
};

//! Requests to registries and to those who vouch for credentials.
//!
//! Every request has one deadline for all of it, and every answer a size that it may not exceed.
//! Redirects are not followed: they would carry secrets to whoever is named. Not here: what is asked.

mod base_url;
mod call;
mod client;
mod error;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use self::call::{Call, Connection, Reply};
pub use self::{
    base_url::{BaseUrl, BaseUrlError, is_near},
    client::Http,
    error::{ExchangeError, HttpError},
};

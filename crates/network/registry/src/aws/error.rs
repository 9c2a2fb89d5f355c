//! Why there are no keys, or no region.

use std::io;

/// Why no keys were found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// Host: a shared file cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// Caller: a shared file is longer than anybody writes one.
    #[error("`{path}` exceeds {limit} bytes")]
    TooLong {
        /// The file.
        path: String,
        /// The most there may be.
        limit: u64,
    },
    /// Caller: a line of a shared file cannot be read. It is not repeated, because it may hold a
    /// secret.
    #[error("line {line} of `{path}` is neither a section nor a setting")]
    Syntax {
        /// The file.
        path: String,
        /// The line, counted from one.
        line: usize,
    },
    /// Caller: no file has the profile that was named.
    #[error("there is no AWS profile `{0}`")]
    NoProfile(String),
    /// Caller: only a part of the keys is there.
    #[error("{place} has `{present}` but no `{missing}`")]
    Incomplete {
        /// Where.
        place: String,
        /// What is there.
        present: &'static str,
        /// What is not.
        missing: &'static str,
    },
    /// Caller: the profile gets its keys in a way that is not supported.
    #[error("AWS profile `{profile}` uses `{setting}`, which is not supported here")]
    Unsupported {
        /// The profile.
        profile: String,
        /// What it uses.
        setting: &'static str,
    },
    /// Host: the program that the profile names for its keys did not run to its end.
    #[error("credential_process of AWS profile `{profile}` failed")]
    Process {
        /// The profile.
        profile: String,
        /// Why.
        source: io::Error,
    },
    /// Caller: what that program said are no keys. It is not repeated.
    #[error("credential_process of AWS profile `{profile}` gave no keys: {reason}")]
    NoKeys {
        /// The profile.
        profile: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Caller: there are none in any of the places.
    #[error(
        "no AWS keys found: looked at AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY and at profile \
         `{0}` of the shared files; metadata services and web identities are not asked"
    )]
    NotFound(String),
}

/// Why no region was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Caller: nobody names one.
    #[error("no AWS region: name one by flag, by AWS_REGION, or in the profile")]
    Missing,
    /// Caller: what is named is no region.
    #[error("`{0}` is not the name of an AWS region")]
    Malformed(String),
    /// Caller or host: the shared files are of no use.
    #[error(transparent)]
    Files(#[from] KeysError),
}

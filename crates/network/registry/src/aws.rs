//! Where the keys and the region of AWS signatures come from: what the caller names, environment
//! values that the caller hands in, and the shared files of the AWS tools.
//! Invariant: keys are looked up anew for every signature, so that whoever rotates them is heard; no
//! text shows a secret.
//! Not here: roles, single sign-on and metadata services, which need a vendor's endpoint; a profile
//! that asks for them is refused by name.

mod profiles;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use tokio::task::spawn_blocking;

use self::profiles::{Kind, Profiles};
use crate::api::sigv4::{Keys, SecretKey, SessionToken};

/// What the caller says about keys and region.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The profile that was asked for: nothing else is looked at for keys then.
    pub profile: Option<String>,
    /// The region that was asked for.
    pub region: Option<String>,
    /// What the environment has.
    pub environment: EnvironmentValues,
    /// The shared file `config`, unless there is no place for one.
    pub config_file: Option<PathBuf>,
    /// The shared file `credentials`, unless there is no place for one.
    pub credentials_file: Option<PathBuf>,
}

/// The values of environment variables. Blank ones count as absent. `Debug` hides keys.
#[derive(Clone, Default)]
pub struct EnvironmentValues {
    /// `AWS_ACCESS_KEY_ID`.
    pub access_key_id: Option<String>,
    /// `AWS_SECRET_ACCESS_KEY`.
    pub secret_access_key: Option<String>,
    /// `AWS_SESSION_TOKEN`.
    pub session_token: Option<String>,
    /// `AWS_PROFILE`.
    pub profile: Option<String>,
    /// `AWS_REGION`.
    pub region: Option<String>,
    /// `AWS_DEFAULT_REGION`.
    pub default_region: Option<String>,
}

impl std::fmt::Debug for EnvironmentValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvironmentValues")
            .field("profile", &self.profile)
            .field("region", &self.region)
            .field("default_region", &self.default_region)
            .finish_non_exhaustive()
    }
}

/// Finds keys and region.
#[derive(Clone, Debug)]
pub struct Chain(Settings);

impl Chain {
    /// Takes what the caller says. Nothing is looked up yet.
    pub fn new(settings: Settings) -> Self {
        Self(settings)
    }

    /// Finds the keys as they are now: those of the profile that was asked for; else those of the
    /// environment, then those of `AWS_PROFILE` or of the default profile.
    ///
    /// # Errors
    /// When there are none, or where they should be is something else.
    pub async fn keys(&self) -> Result<Keys, KeysError> {
        let named = present(&self.0.profile);
        if named.is_none()
            && let Some(keys) = self.environment_keys()?
        {
            return Ok(keys);
        }
        let profiles = self.profiles().await?;
        let profile = self.profile();
        let chosen = named.or(present(&self.0.environment.profile));
        if chosen.is_some() && !profiles.contains(profile) {
            return Err(KeysError::NoProfile(profile.to_owned()));
        }
        profile_keys(&profiles, profile).await
    }

    /// Finds the region: the one that was asked for; else that of the environment, then that of the
    /// profile.
    ///
    /// # Errors
    /// When there is none.
    pub async fn region(&self) -> Result<String, RegionError> {
        let environment = &self.0.environment;
        let named = present(&self.0.region)
            .or(present(&environment.region))
            .or(present(&environment.default_region));
        let region = match named {
            Some(region) => region.to_owned(),
            None => {
                let profiles = self.profiles().await?;
                let region = profiles.setting(self.profile(), "region");
                region.ok_or(RegionError::Missing)?.to_owned()
            }
        };
        // It becomes a part of the scope, whose parts are told apart by slashes.
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if region.chars().all(fits) {
            Ok(region)
        } else {
            Err(RegionError::Malformed(region.escape_debug().to_string()))
        }
    }

    fn profile(&self) -> &str {
        let environment = &self.0.environment;
        let profile = present(&self.0.profile).or(present(&environment.profile));
        profile.unwrap_or("default")
    }

    fn environment_keys(&self) -> Result<Option<Keys>, KeysError> {
        let environment = &self.0.environment;
        let incomplete = |present, missing| KeysError::Incomplete {
            place: "the environment".to_owned(),
            present,
            missing,
        };
        match (
            present(&environment.access_key_id),
            present(&environment.secret_access_key),
        ) {
            (Some(id), Some(secret)) => {
                let token = present(&environment.session_token);
                Ok(Some(keys(id, secret, token)))
            }
            (None, None) => Ok(None),
            (Some(_), None) => Err(incomplete("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
            (None, Some(_)) => Err(incomplete("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID")),
        }
    }

    async fn profiles(&self) -> Result<Profiles, KeysError> {
        let files = [
            (Kind::Config, self.0.config_file.clone()),
            (Kind::Credentials, self.0.credentials_file.clone()),
        ];
        let read = spawn_blocking(move || {
            let mut profiles = Profiles::default();
            for (kind, path) in files {
                let Some(path) = path else { continue };
                let text = read(&path)?;
                profiles
                    .add(kind, &text)
                    .map_err(|line| KeysError::Syntax {
                        path: path.display().to_string(),
                        line,
                    })?;
            }
            Ok(profiles)
        });
        read.await.unwrap_or_else(|error| {
            Err(KeysError::Read {
                path: "the shared files".to_owned(),
                source: io::Error::other(error),
            })
        })
    }
}

/// Longest shared file: they are written by hand.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Ways to keys that need an endpoint of the vendor, by the setting that asks for them.
const UNSUPPORTED: &[&str] = &[
    "role_arn",
    "web_identity_token_file",
    "sso_session",
    "sso_start_url",
    "login_session",
];

async fn profile_keys(profiles: &Profiles, profile: &str) -> Result<Keys, KeysError> {
    let setting = |name| profiles.setting(profile, name);
    // A role comes before the keys beside it, which are only good for asking for the role.
    if setting("role_arn").is_some() {
        return Err(unsupported(profile, "role_arn"));
    }
    let incomplete = |present, missing| KeysError::Incomplete {
        place: format!("AWS profile `{profile}`"),
        present,
        missing,
    };
    match (
        setting("aws_access_key_id"),
        setting("aws_secret_access_key"),
    ) {
        (Some(id), Some(secret)) => return Ok(keys(id, secret, setting("aws_session_token"))),
        (Some(_), None) => return Err(incomplete("aws_access_key_id", "aws_secret_access_key")),
        (None, Some(_)) => return Err(incomplete("aws_secret_access_key", "aws_access_key_id")),
        (None, None) => {}
    }
    if let Some(command) = setting("credential_process") {
        return profiles::run(profile, command).await;
    }
    match UNSUPPORTED.iter().find(|name| setting(name).is_some()) {
        Some(name) => Err(unsupported(profile, name)),
        None => Err(KeysError::NotFound(profile.to_owned())),
    }
}

fn unsupported(profile: &str, setting: &'static str) -> KeysError {
    KeysError::Unsupported {
        profile: profile.to_owned(),
        setting,
    }
}

fn keys(id: &str, secret: &str, token: Option<&str>) -> Keys {
    Keys {
        access_key_id: id.to_owned(),
        secret_key: SecretKey::new(secret),
        session_token: token.map(SessionToken::new),
    }
}

fn present(value: &Option<String>) -> Option<&str> {
    value
        .as_deref()
        .map(str::trim)
        .filter(|text| !text.is_empty())
}

/// Reads a file; one that is not there has nothing in it. Blocks.
fn read(path: &Path) -> Result<String, KeysError> {
    let failed = |source| KeysError::Read {
        path: path.display().to_string(),
        source,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(KeysError::TooLong {
            path: path.display().to_string(),
            limit: MAX_FILE_BYTES,
        });
    }
    read.map_err(failed)?;
    Ok(text)
}

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

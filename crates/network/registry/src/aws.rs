//! Resolves the keys and the region for AWS signatures from explicit settings, environment values
//! that the caller passes in, and the shared files of the AWS tools.
//! Invariant: keys are resolved again for every signature, so key rotation takes effect
//! immediately; errors and `Debug` never contain a secret.
//! Not supported: roles, single sign-on and metadata services, which need an endpoint of the
//! vendor. A profile that uses them is refused by name.

mod profiles;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use tokio::task::spawn_blocking;

use self::profiles::{AwsProfiles, ProfileFile};
use crate::api::{SecretString, sigv4::AwsKeys};

/// Where to look for keys and region, in the usual AWS order.
#[derive(Clone, Debug, Default)]
pub struct AwsKeySources {
    /// Explicit profile. If set, it is the only source of keys.
    pub profile: Option<String>,
    /// Explicit region.
    pub region: Option<String>,
    /// Values of environment variables.
    pub environment: AwsEnvironment,
    /// Path of the shared `config` file, if any.
    pub config_file: Option<PathBuf>,
    /// Path of the shared `credentials` file, if any.
    pub credentials_file: Option<PathBuf>,
}

/// Values of the AWS environment variables. Blank values count as absent. `Debug` redacts keys.
#[derive(Clone, Default)]
pub struct AwsEnvironment {
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

impl std::fmt::Debug for AwsEnvironment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AwsEnvironment")
            .field("profile", &self.profile)
            .field("region", &self.region)
            .field("default_region", &self.default_region)
            .finish_non_exhaustive()
    }
}

impl AwsKeySources {
    /// Resolves the current keys: those of the explicit profile; otherwise those of the
    /// environment, then those of `AWS_PROFILE` or the default profile.
    ///
    /// # Errors
    /// Returns an error if there are no keys or a source is invalid.
    pub async fn keys(&self) -> Result<AwsKeys, AwsKeysError> {
        let named = present(&self.profile);
        if named.is_none()
            && let Some(keys) = self.environment_keys()?
        {
            return Ok(keys);
        }
        let profiles = self.profiles().await?;
        let profile = self.profile();
        let chosen = named.or(present(&self.environment.profile));
        if chosen.is_some() && !profiles.contains(profile) {
            return Err(AwsKeysError::NoProfile(profile.to_owned()));
        }
        profile_keys(&profiles, profile).await
    }

    /// Resolves the region: the explicit one; otherwise that of the environment, then that of the
    /// profile.
    ///
    /// # Errors
    /// Returns an error if no region is configured.
    pub async fn region(&self) -> Result<String, AwsRegionError> {
        let environment = &self.environment;
        let named = present(&self.region)
            .or(present(&environment.region))
            .or(present(&environment.default_region));
        let region = match named {
            Some(region) => region.to_owned(),
            None => {
                let profiles = self.profiles().await?;
                let region = profiles.setting(self.profile(), "region");
                region.ok_or(AwsRegionError::Missing)?.to_owned()
            }
        };
        // The region becomes a component of the credential scope, which slashes separate.
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if region.chars().all(fits) {
            Ok(region)
        } else {
            Err(AwsRegionError::Malformed(region.escape_debug().to_string()))
        }
    }

    fn profile(&self) -> &str {
        let environment = &self.environment;
        let profile = present(&self.profile).or(present(&environment.profile));
        profile.unwrap_or("default")
    }

    fn environment_keys(&self) -> Result<Option<AwsKeys>, AwsKeysError> {
        let environment = &self.environment;
        key_pair(
            || "the environment".to_owned(),
            ("AWS_ACCESS_KEY_ID", present(&environment.access_key_id)),
            (
                "AWS_SECRET_ACCESS_KEY",
                present(&environment.secret_access_key),
            ),
            present(&environment.session_token),
        )
    }

    async fn profiles(&self) -> Result<AwsProfiles, AwsKeysError> {
        let files = [
            (ProfileFile::Config, self.config_file.clone()),
            (ProfileFile::Credentials, self.credentials_file.clone()),
        ];
        let read = spawn_blocking(move || {
            let mut profiles = AwsProfiles::default();
            for (kind, path) in files {
                let Some(path) = path else { continue };
                let text = read(&path)?;
                profiles
                    .add(kind, &text)
                    .map_err(|line| AwsKeysError::Syntax {
                        path: path.display().to_string(),
                        line,
                    })?;
            }
            Ok(profiles)
        });
        read.await.unwrap_or_else(|error| {
            Err(AwsKeysError::Read {
                path: "the shared files".to_owned(),
                source: io::Error::other(error),
            })
        })
    }
}

/// Longest shared file. These files are written by hand.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Settings that select an unsupported source of keys: these need an endpoint of the vendor.
const UNSUPPORTED: &[&str] = &[
    "role_arn",
    "web_identity_token_file",
    "sso_session",
    "sso_start_url",
    "login_session",
];

async fn profile_keys(profiles: &AwsProfiles, profile: &str) -> Result<AwsKeys, AwsKeysError> {
    let setting = |name| profiles.setting(profile, name);
    // A role takes precedence over keys in the same profile, which only serve to assume the role.
    if setting("role_arn").is_some() {
        return Err(unsupported(profile, "role_arn"));
    }
    let found = key_pair(
        || format!("AWS profile `{profile}`"),
        ("aws_access_key_id", setting("aws_access_key_id")),
        ("aws_secret_access_key", setting("aws_secret_access_key")),
        setting("aws_session_token"),
    )?;
    if let Some(keys) = found {
        return Ok(keys);
    }
    if let Some(command) = setting("credential_process") {
        return profiles::run_credential_process(profile, command).await;
    }
    match UNSUPPORTED.iter().find(|name| setting(name).is_some()) {
        Some(name) => Err(unsupported(profile, name)),
        None => Err(AwsKeysError::NotFound(profile.to_owned())),
    }
}

fn unsupported(profile: &str, setting: &'static str) -> AwsKeysError {
    AwsKeysError::Unsupported {
        profile: profile.to_owned(),
        setting,
    }
}

/// Joins the two keys, each given with the name of its setting.
fn key_pair(
    location: impl FnOnce() -> String,
    (id_name, id): (&'static str, Option<&str>),
    (secret_name, secret): (&'static str, Option<&str>),
    token: Option<&str>,
) -> Result<Option<AwsKeys>, AwsKeysError> {
    let (present, missing) = match (id, secret) {
        (Some(id), Some(secret)) => {
            return Ok(Some(AwsKeys {
                access_key_id: id.to_owned(),
                secret_key: SecretString::new(secret),
                session_token: token.map(SecretString::new),
            }));
        }
        (None, None) => return Ok(None),
        (Some(_), None) => (id_name, secret_name),
        (None, Some(_)) => (secret_name, id_name),
    };
    Err(AwsKeysError::Incomplete {
        location: location(),
        present,
        missing,
    })
}

fn present(value: &Option<String>) -> Option<&str> {
    value
        .as_deref()
        .map(str::trim)
        .filter(|text| !text.is_empty())
}

/// Reads a file. A missing file counts as empty. Blocks.
fn read(path: &Path) -> Result<String, AwsKeysError> {
    let failed = |source| AwsKeysError::Read {
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
        return Err(AwsKeysError::TooLong {
            path: path.display().to_string(),
            limit: MAX_FILE_BYTES,
        });
    }
    read.map_err(failed)?;
    Ok(text)
}

/// Why keys cannot be resolved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AwsKeysError {
    /// Host: a shared file cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// Caller: a shared file is too long.
    #[error("`{path}` exceeds {limit} bytes")]
    TooLong {
        /// The file.
        path: String,
        /// The limit.
        limit: u64,
    },
    /// Caller: a line of a shared file is invalid. The error does not repeat it, because it may
    /// contain a secret.
    #[error("line {line} of `{path}` is neither a section nor a setting")]
    Syntax {
        /// The file.
        path: String,
        /// The line, counted from one.
        line: usize,
    },
    /// Caller: the named profile does not exist.
    #[error("AWS profile `{0}` not found")]
    NoProfile(String),
    /// Caller: only one of the two keys is set.
    #[error("{location} has `{present}` but not `{missing}`")]
    Incomplete {
        /// Where the key was found.
        location: String,
        /// The setting that is present.
        present: &'static str,
        /// The setting that is missing.
        missing: &'static str,
    },
    /// Caller: the profile uses an unsupported source of keys.
    #[error("AWS profile `{profile}` uses `{setting}`, which is not supported here")]
    Unsupported {
        /// The profile.
        profile: String,
        /// The unsupported setting.
        setting: &'static str,
    },
    /// Host: the profile's `credential_process` failed.
    #[error("credential_process of AWS profile `{profile}` failed")]
    Process {
        /// The profile.
        profile: String,
        /// Why.
        source: io::Error,
    },
    /// Caller: the output of `credential_process` is invalid. The error does not repeat it.
    #[error("credential_process of AWS profile `{profile}` returned no keys: {reason}")]
    NoKeys {
        /// The profile.
        profile: String,
        /// Describes the problem.
        reason: &'static str,
    },
    /// Caller: no source has keys.
    #[error(
        "no AWS keys found: looked in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY and in profile \
         `{0}` of the shared files; metadata services and web identities are not supported"
    )]
    NotFound(String),
}

/// Why the region cannot be resolved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AwsRegionError {
    /// Caller: no region is configured.
    #[error("no AWS region: set one with a flag, AWS_REGION, or in the profile")]
    Missing,
    /// Caller: the region's name is invalid.
    #[error("invalid AWS region `{0}`")]
    Malformed(String),
    /// Caller or host: the shared files cannot be used.
    #[error(transparent)]
    Files(#[from] AwsKeysError),
}

//! Tests of every source of keys and regions, in order of precedence.

use tempfile::TempDir;

use super::{AwsEnvironment, AwsKeySources, AwsKeysError, AwsRegionError};
use crate::api::{SecretString, sigv4::AwsKeys};

const CONFIG: &str = "[default]\nregion = eu-central-1\n[profile work]\nregion = us-west-2\n\
                      [profile tool]\ncredential_process = echo '{\"Version\":1,\"AccessKeyId\":\"tool\",\"SecretAccessKey\":\"s\"}'\n\
                      [profile role]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = work\n\
                      [profile sso]\nsso_session = corp\n[profile slash]\nregion = a/b\n";
const CREDENTIALS: &str = "[default]\naws_access_key_id = file\naws_secret_access_key = s\n\
                           [work]\naws_access_key_id = work\naws_secret_access_key = s\naws_session_token = t\n\
                           [role]\naws_access_key_id = r\naws_secret_access_key = s\n\
                           [half]\naws_access_key_id = half\n";

struct AwsFiles(TempDir);

impl AwsFiles {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config"), CONFIG).unwrap();
        std::fs::write(dir.path().join("credentials"), CREDENTIALS).unwrap();
        Self(dir)
    }

    fn settings(&self) -> AwsKeySources {
        AwsKeySources {
            config_file: Some(self.0.path().join("config")),
            credentials_file: Some(self.0.path().join("credentials")),
            ..AwsKeySources::default()
        }
    }

    fn profile(&self, name: &str) -> AwsKeySources {
        AwsKeySources {
            profile: Some(name.to_owned()),
            ..self.settings()
        }
    }
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn environment() -> AwsEnvironment {
    AwsEnvironment {
        access_key_id: some("env"),
        secret_access_key: some("s"),
        session_token: some("t"),
        ..AwsEnvironment::default()
    }
}

fn keys(id: &str, token: Option<&str>) -> AwsKeys {
    AwsKeys {
        access_key_id: id.to_owned(),
        secret_key: SecretString::new("s"),
        session_token: token.map(SecretString::new),
    }
}

#[tokio::test]
async fn keys_come_from_the_first_source_that_has_them() {
    let files = AwsFiles::new();
    let both = AwsKeySources {
        environment: environment(),
        ..files.settings()
    };
    let found = both.keys().await.unwrap();
    assert_eq!(found, keys("env", Some("t")));
    let named = AwsKeySources {
        profile: some("work"),
        ..both.clone()
    };
    let found = named.keys().await.unwrap();
    assert_eq!(found, keys("work", Some("t")));
    let chosen = AwsKeySources {
        environment: AwsEnvironment {
            profile: some("work"),
            ..AwsEnvironment::default()
        },
        ..files.settings()
    };
    let found = chosen.keys().await.unwrap();
    assert_eq!(found, keys("work", Some("t")));
    let blank = AwsKeySources {
        environment: AwsEnvironment {
            access_key_id: some(" "),
            secret_access_key: some(""),
            profile: some(""),
            ..AwsEnvironment::default()
        },
        ..files.settings()
    };
    let found = blank.keys().await.unwrap();
    assert_eq!(found, keys("file", None));
    let found = files.profile("tool").keys().await.unwrap();
    assert_eq!(found, keys("tool", None));
}

#[tokio::test]
async fn rotated_keys_take_effect() {
    let files = AwsFiles::new();
    let chain = files.profile("work");
    assert_eq!(chain.keys().await.unwrap(), keys("work", Some("t")));
    let rotated = "[work]\naws_access_key_id = new\naws_secret_access_key = s\n";
    std::fs::write(files.0.path().join("credentials"), rotated).unwrap();
    assert_eq!(chain.keys().await.unwrap(), keys("new", None));
}

#[tokio::test]
async fn unusable_profiles_are_named_in_the_error() {
    let files = AwsFiles::new();
    for (profile, expected) in [
        ("none", "AWS profile `none` not found"),
        (
            "half",
            "AWS profile `half` has `aws_access_key_id` but not `aws_secret_access_key`",
        ),
        (
            "role",
            "AWS profile `role` uses `role_arn`, which is not supported here",
        ),
        (
            "sso",
            "AWS profile `sso` uses `sso_session`, which is not supported here",
        ),
    ] {
        let error = files.profile(profile).keys().await.unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let nothing = AwsKeySources::default().keys().await.unwrap_err();
    assert!(matches!(nothing, AwsKeysError::NotFound(profile) if profile == "default"));
    let half = AwsKeySources {
        environment: AwsEnvironment {
            session_token: some("t"),
            access_key_id: None,
            ..environment()
        },
        ..files.settings()
    };
    let error = half.keys().await.unwrap_err();
    let expected = "the environment has `AWS_SECRET_ACCESS_KEY` but not `AWS_ACCESS_KEY_ID`";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn unusable_shared_files_are_errors() {
    let files = AwsFiles::new();
    let path = files.0.path().join("credentials");
    std::fs::write(&path, "[default]\ns3cret without a sign\n").unwrap();
    let error = files.settings().keys().await.unwrap_err();
    assert!(
        matches!(error, AwsKeysError::Syntax { line: 2, .. }),
        "{error:?}"
    );
    assert!(!format!("{error} {error:?}").contains("s3cret"));
    std::fs::write(&path, "#".repeat((1 << 20) + 1)).unwrap();
    let error = files.settings().keys().await.unwrap_err();
    assert!(matches!(error, AwsKeysError::TooLong { .. }), "{error:?}");
    let directory = AwsKeySources {
        config_file: Some(files.0.path().to_owned()),
        ..AwsKeySources::default()
    };
    let error = directory.keys().await.unwrap_err();
    assert!(matches!(error, AwsKeysError::Read { .. }), "{error:?}");
}

#[tokio::test]
async fn region_comes_from_the_first_source_that_has_one() {
    let files = AwsFiles::new();
    let mut settings = AwsKeySources {
        profile: some("work"),
        region: some("flag"),
        environment: AwsEnvironment {
            region: some("env"),
            default_region: some("env-default"),
            ..AwsEnvironment::default()
        },
        ..files.settings()
    };
    let mut found = Vec::new();
    for step in 0..5 {
        match step {
            0 => {}
            1 => settings.region = None,
            2 => settings.environment.region = some("  "),
            3 => settings.environment.default_region = None,
            _ => settings.profile = None,
        }
        found.push(settings.region().await.unwrap());
    }
    let expected = ["flag", "env", "env-default", "us-west-2", "eu-central-1"];
    assert_eq!(found, expected);
    let missing = AwsKeySources::default().region().await.unwrap_err();
    assert!(matches!(missing, AwsRegionError::Missing));
    let malformed = files.profile("slash").region().await.unwrap_err();
    assert!(matches!(malformed, AwsRegionError::Malformed(region) if region == "a/b"));
}

#[test]
fn debug_redacts_keys_of_the_environment() {
    let shown = format!(
        "{:?}",
        AwsKeySources {
            environment: AwsEnvironment {
                secret_access_key: some("s3cret"),
                session_token: some("t0ken"),
                ..AwsEnvironment::default()
            },
            ..AwsKeySources::default()
        }
    );
    assert!(
        !shown.contains("s3cret") && !shown.contains("t0ken"),
        "{shown}"
    );
}

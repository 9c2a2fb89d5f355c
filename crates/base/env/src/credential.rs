//! Environment variables that hold credentials, in one list. The list decides which variables this
//! program reads, and which it keeps from commands and HTTP requests.
//!
//! Invariant: this program reads no credential from a variable outside the list. `cargo xtask tidy`
//! fails when a credential-like name appears elsewhere.

use std::ffi::OsStr;

/// Determines which programs may see a credential.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CredentialScope {
    /// Used by the stock server or by this one only. A command never gets it, even if a request
    /// sets it.
    Reserved,
    /// Read by this program. Commands do not inherit it from the server, but a request may set it.
    Own,
    /// Read by other programs. Commands inherit it if their policy allows, but no HTTP header may
    /// carry it.
    Foreign,
}

macro_rules! credential_variables {
    ($($variant:ident = $name:literal, $scope:ident;)+) => {
        /// Variable that holds a credential, or the path of a file with one.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "each variant has the name of its variable")]
        pub enum CredentialVariable {
            $($variant,)+
        }

        impl CredentialVariable {
            /// All variables of the list.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns the scope of the credential.
            pub const fn scope(self) -> CredentialScope {
                match self {
                    $(Self::$variant => CredentialScope::$scope,)+
                }
            }
        }
    };
}

credential_variables! {
    NoiseAuthToken = "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN", Reserved;
    HubToken = "EXEC_SERVER_HUB_TOKEN", Reserved;
    RemoteToken = "EXEC_SERVER_REMOTE_TOKEN", Reserved;
    NodeReplAuthToken = "NODE_REPL_AUTH_TOKEN", Reserved;
    FederationRuleId = "OPENAI_FEDERATION_RULE_ID", Reserved;
    IdentityTokenFile = "OPENAI_IDENTITY_TOKEN_FILE", Reserved;
    WorkloadIdentityContext = "OPENAI_WORKLOAD_IDENTITY_CONTEXT", Reserved;
    ServerToken = "EXEC_SERVER_TOKEN", Own;
    CodexApiKey = "CODEX_API_KEY", Own;
    CodexAccessToken = "CODEX_ACCESS_TOKEN", Own;
    AwsAccessKeyId = "AWS_ACCESS_KEY_ID", Own;
    AwsSecretAccessKey = "AWS_SECRET_ACCESS_KEY", Own;
    AwsSessionToken = "AWS_SESSION_TOKEN", Own;
    OpenaiApiKey = "OPENAI_API_KEY", Foreign;
    CodexConnectorsToken = "CODEX_CONNECTORS_TOKEN", Foreign;
    AzureClientSecret = "AZURE_CLIENT_SECRET", Foreign;
    AzureFederatedTokenFile = "AZURE_FEDERATED_TOKEN_FILE", Foreign;
    GoogleApplicationCredentials = "GOOGLE_APPLICATION_CREDENTIALS", Foreign;
}

impl CredentialVariable {
    /// Finds a variable by its name, ignoring case.
    pub fn find(name: &OsStr) -> Option<Self> {
        let name_matches = |variable: &&Self| name.eq_ignore_ascii_case(variable.name());
        Self::ALL.iter().find(name_matches).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_lookup_ignores_case() {
        let find = |name: &str| CredentialVariable::find(OsStr::new(name));
        assert_eq!(
            find("aws_Session_token"),
            Some(CredentialVariable::AwsSessionToken)
        );
        assert_eq!(find("AWS_SESSION_TOKENS"), None);
    }

    #[test]
    fn variable_names_are_unique() {
        for variable in CredentialVariable::ALL {
            assert_eq!(
                CredentialVariable::find(OsStr::new(variable.name())),
                Some(*variable)
            );
        }
    }
}

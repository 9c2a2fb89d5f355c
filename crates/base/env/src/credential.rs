//! Environment variables that hold credentials: one list by which they are read here, and kept from
//! commands and from requests.
//!
//! Invariant: this program reads no credential from a variable that is not in the list. `cargo xtask
//! tidy` fails when a name that looks like one stands elsewhere.

use std::ffi::OsStr;

/// Who uses a credential, which decides who may see it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CredentialScope {
    /// Of the stock server, or of ours alone. It never reaches a command, not even if a request sets it.
    Reserved,
    /// This program reads it. Commands do not inherit it from the server; a request may set it.
    Own,
    /// Other programs read it. Commands inherit it as their policy says, but no header may carry it.
    Foreign,
}

macro_rules! credential_variables {
    ($($variant:ident = $name:literal, $scope:ident;)+) => {
        /// A variable that holds a credential, or names a file with one.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "each variant is its variable's name")]
        pub enum CredentialVariable {
            $($variant,)+
        }

        impl CredentialVariable {
            /// Every one of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns who uses it.
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
    /// Finds a variable by its name, in any case.
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

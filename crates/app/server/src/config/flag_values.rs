//! Types of option values that only the command line and its other sources have.

use std::str::FromStr;

use clap::ValueEnum;
use exec_sandbox::{MechanismChoice, ProcessIsolation};
use exec_service::DurabilityDefault;

/// Boolean.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Switch(pub bool);

impl FromStr for Switch {
    type Err = SwitchParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Ok(Self(true)),
            "false" | "no" | "off" | "0" => Ok(Self(false)),
            _ => Err(SwitchParseError),
        }
    }
}

/// Caller: not a boolean.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected true or false")]
pub struct SwitchParseError;

/// How websocket clients authenticate.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum WsAuth {
    /// With one secret token.
    CapabilityToken,
    /// With a JWT signed with a shared secret (HS256).
    SignedBearerToken,
}

impl WsAuth {
    /// Returns the name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CapabilityToken => "capability-token",
            Self::SignedBearerToken => "signed-bearer-token",
        }
    }
}

impl FromStr for WsAuth {
    type Err = WsAuthParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::value_variants()
            .iter()
            .copied()
            .find(|mode| mode.as_str() == text)
            .ok_or(WsAuthParseError)
    }
}

/// Caller: unknown kind of authentication.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected capability-token or signed-bearer-token")]
pub struct WsAuthParseError;

/// Processes that outlive the server if their client does not choose.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum DurableChoice {
    /// None.
    Off,
    /// Detached processes.
    Detached,
    /// All processes.
    All,
}

impl FromStr for DurableChoice {
    type Err = DurableChoiceParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        <Self as ValueEnum>::from_str(text, false).map_err(|_| DurableChoiceParseError)
    }
}

impl From<DurableChoice> for DurabilityDefault {
    fn from(choice: DurableChoice) -> Self {
        match choice {
            DurableChoice::Off => Self::Off,
            DurableChoice::Detached => Self::Detached,
            DurableChoice::All => Self::All,
        }
    }
}

/// Caller: not one of these choices.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected off, detached or all")]
pub struct DurableChoiceParseError;

/// Mechanism that enforces policies.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum SandboxMechanism {
    /// The cheapest one that expresses the whole policy.
    Cheapest,
    /// Landlock and seccomp.
    Landlock,
    /// Namespaces set up by exec-server.
    Namespaces,
    /// Bubblewrap.
    Bubblewrap,
}

impl FromStr for SandboxMechanism {
    type Err = SandboxMechanismParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        <Self as ValueEnum>::from_str(text, false).map_err(|_| SandboxMechanismParseError)
    }
}

impl From<SandboxMechanism> for MechanismChoice {
    fn from(mechanism: SandboxMechanism) -> Self {
        match mechanism {
            SandboxMechanism::Cheapest => Self::Cheapest,
            SandboxMechanism::Landlock => Self::Landlock,
            SandboxMechanism::Namespaces => Self::Namespaces,
            SandboxMechanism::Bubblewrap => Self::Bubblewrap,
        }
    }
}

/// Caller: unknown mechanism.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected cheapest, landlock, namespaces or bubblewrap")]
pub struct SandboxMechanismParseError;

/// Processes that a sandboxed command sees.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum PidNamespace {
    /// Only its own.
    Isolate,
    /// The host's.
    Inherit,
}

impl FromStr for PidNamespace {
    type Err = PidNamespaceParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        <Self as ValueEnum>::from_str(text, false).map_err(|_| PidNamespaceParseError)
    }
}

impl From<PidNamespace> for ProcessIsolation {
    fn from(namespace: PidNamespace) -> Self {
        match namespace {
            PidNamespace::Isolate => Self::Isolated,
            PidNamespace::Inherit => Self::Inherited,
        }
    }
}

/// Caller: neither of the two.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected isolate or inherit")]
pub struct PidNamespaceParseError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_accept_common_boolean_words() {
        for text in ["true", "TRUE", "yes", "on", "1"] {
            assert_eq!(text.parse(), Ok(Switch(true)), "{text}");
        }
        for text in ["false", "no", "Off", "0"] {
            assert_eq!(text.parse(), Ok(Switch(false)), "{text}");
        }
        for text in ["", "2", "y", "tru"] {
            assert_eq!(text.parse::<Switch>(), Err(SwitchParseError), "{text}");
        }
    }

    #[test]
    fn authentication_has_the_same_names_in_every_source() {
        for mode in WsAuth::value_variants() {
            let flag = mode
                .to_possible_value()
                .map(|value| value.get_name().to_owned());
            assert_eq!(flag.as_deref(), Some(mode.as_str()));
            assert_eq!(mode.as_str().parse(), Ok(*mode));
        }
        assert_eq!("none".parse::<WsAuth>(), Err(WsAuthParseError));
    }

    #[test]
    fn mechanism_and_pid_namespace_names_are_parsed() {
        let mechanisms = [
            ("cheapest", MechanismChoice::Cheapest),
            ("landlock", MechanismChoice::Landlock),
            ("namespaces", MechanismChoice::Namespaces),
            ("bubblewrap", MechanismChoice::Bubblewrap),
        ];
        for (text, mechanism) in mechanisms {
            let read = text.parse::<SandboxMechanism>().map(MechanismChoice::from);
            assert_eq!(read, Ok(mechanism), "{text}");
        }
        let isolate = "isolate"
            .parse::<PidNamespace>()
            .map(ProcessIsolation::from);
        assert_eq!(isolate, Ok(ProcessIsolation::Isolated));
        let inherit = "inherit"
            .parse::<PidNamespace>()
            .map(ProcessIsolation::from);
        assert_eq!(inherit, Ok(ProcessIsolation::Inherited));
        for text in ["", "Landlock", "bwrap", "none", "isolate,inherit"] {
            assert!(text.parse::<SandboxMechanism>().is_err(), "{text}");
            assert!(text.parse::<PidNamespace>().is_err(), "{text}");
        }
    }
}

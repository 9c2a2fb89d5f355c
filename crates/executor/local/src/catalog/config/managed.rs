//! What `managed_config.toml` demands: the values that it sets are the ones that remain allowed.

use serde::{Deserialize, Serialize};
use toml::Table;

use super::layers::LoadError;

/// The keys of a managed configuration that are demands.
#[derive(Debug, Deserialize)]
struct Managed {
    approval_policy: Option<ApprovalPolicy>,
    approvals_reviewer: Option<Reviewer>,
    sandbox_mode: Option<SandboxMode>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ApprovalPolicy {
    Untrusted,
    OnFailure,
    OnRequest,
    Granular(Granular),
    Never,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Granular {
    sandbox_approval: bool,
    rules: bool,
    #[serde(default)]
    skill_approval: bool,
    #[serde(default)]
    request_permissions: bool,
    mcp_elicitations: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Reviewer {
    User,
    #[serde(alias = "guardian_subagent")]
    AutoReview,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum SandboxMode {
    ReadOnly,
    WorkspaceWrite,
    DangerFullAccess,
}

/// What is demanded, in the words of `requirements.toml`.
#[derive(Debug, Serialize)]
struct Demanded {
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_approval_policies: Option<[ApprovalPolicy; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_approvals_reviewers: Option<Vec<Reviewer>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_sandbox_modes: Option<Vec<SandboxMode>>,
}

/// Makes requirements of a managed configuration. What cannot be understood fails: a demand that nobody
/// sees would not be kept.
pub(super) fn requirements(managed: &Table) -> Result<Table, LoadError> {
    let unreadable = |error: String| {
        LoadError::Unreadable(format!(
            "managed_config.toml makes no requirements: {error}"
        ))
    };
    let managed = Managed::deserialize(managed.clone());
    let managed = managed.map_err(|error| unreadable(error.to_string()))?;
    // Asking after a failure is asking on request, since the former is not offered any more.
    let policy = managed.approval_policy.map(|policy| {
        let after_a_failure = matches!(policy, ApprovalPolicy::OnFailure);
        [if after_a_failure {
            ApprovalPolicy::OnRequest
        } else {
            policy
        }]
    });
    let reviewers = managed.approvals_reviewer.map(|reviewer| match reviewer {
        Reviewer::User => vec![Reviewer::User],
        // People may always be asked instead.
        Reviewer::AutoReview => vec![reviewer, Reviewer::User],
    });
    let modes = managed.sandbox_mode.map(|mode| match mode {
        SandboxMode::ReadOnly => vec![mode],
        // Less may always be asked for.
        SandboxMode::WorkspaceWrite | SandboxMode::DangerFullAccess => {
            vec![SandboxMode::ReadOnly, mode]
        }
    });
    let demanded = Demanded {
        allowed_approval_policies: policy,
        allowed_approvals_reviewers: reviewers,
        allowed_sandbox_modes: modes,
    };
    Table::try_from(demanded).map_err(|error| unreadable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demanded(managed: &str) -> Result<String, LoadError> {
        let table = requirements(&toml::from_str(managed).unwrap())?;
        Ok(toml::to_string(&table).unwrap())
    }

    #[test]
    fn what_is_set_is_what_remains_allowed() {
        let pairs = [
            ("model = 'x'", ""),
            (
                "approval_policy = 'never'",
                "allowed_approval_policies = [\"never\"]\n",
            ),
            (
                "approval_policy = 'on-failure'",
                "allowed_approval_policies = [\"on-request\"]\n",
            ),
            (
                "approvals_reviewer = 'user'",
                "allowed_approvals_reviewers = [\"user\"]\n",
            ),
            (
                "approvals_reviewer = 'auto_review'",
                "allowed_approvals_reviewers = [\"auto_review\", \"user\"]\n",
            ),
            (
                "sandbox_mode = 'read-only'",
                "allowed_sandbox_modes = [\"read-only\"]\n",
            ),
            (
                "sandbox_mode = 'danger-full-access'",
                "allowed_sandbox_modes = [\"read-only\", \"danger-full-access\"]\n",
            ),
            (
                "approval_policy = { granular = { sandbox_approval = true, rules = true, \
                 mcp_elicitations = false } }",
                "[[allowed_approval_policies]]\n\n[allowed_approval_policies.granular]\n\
                 sandbox_approval = true\nrules = true\nskill_approval = false\n\
                 request_permissions = false\nmcp_elicitations = false\n",
            ),
        ];
        for (managed, expected) in pairs {
            assert_eq!(demanded(managed).unwrap(), expected, "{managed}");
        }
    }

    #[test]
    fn a_demand_that_cannot_be_understood_is_not_dropped() {
        for managed in [
            "approval_policy = 'bogus'",
            "approval_policy = 5",
            "sandbox_mode = 'x'",
        ] {
            assert!(demanded(managed).is_err(), "{managed}");
        }
    }
}

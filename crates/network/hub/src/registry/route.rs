//! Paths: `/cloud/environment/<id>/<operation>`.

use crate::audit::Action;

/// What a path asks for. The id is not checked yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Route<'a> {
    pub(super) environment: &'a str,
    pub(super) operation: Operation,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Operation {
    Register,
    Connect,
    Validate,
    DirectRegister,
}

impl<'a> Route<'a> {
    pub(super) const PREFIX: &'static str = "/cloud/environment/";

    /// `None`: there is nothing at this path.
    pub(super) fn parse(path: &'a str) -> Option<Self> {
        let rest = path.strip_prefix(Self::PREFIX)?;
        let (environment, operation) = rest.split_once('/')?;
        let operation = match operation {
            "register" => Operation::Register,
            "connect" => Operation::Connect,
            "validate" => Operation::Validate,
            "direct/register" => Operation::DirectRegister,
            _ => return None,
        };
        Some(Self {
            environment,
            operation,
        })
    }
}

impl Operation {
    pub(super) fn action(self) -> Action {
        match self {
            Self::Register => Action::Register,
            Self::Connect => Action::Connect,
            Self::Validate => Action::Validate,
            Self::DirectRegister => Action::DirectRegister,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_matched_whole() {
        let found = Route::parse("/cloud/environment/env-1/direct/register").unwrap();
        assert_eq!(found.environment, "env-1");
        assert_eq!(found.operation, Operation::DirectRegister);
        for path in [
            "/cloud/environment/env-1",
            "/cloud/environment/env-1/",
            "/cloud/environment/env-1/register/",
            "/cloud/environment/a/b/register",
            "/cloud/environment/env-1/Register",
            "/x/cloud/environment/env-1/register",
            "/cloud/environment/",
            "/",
        ] {
            assert_eq!(Route::parse(path), None, "{path}");
        }
    }
}

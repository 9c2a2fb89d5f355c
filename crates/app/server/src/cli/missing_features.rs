//! Flags and commands that are unknown because the program was built without a feature.

use clap::{
    CommandFactory, Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::cli::Cli;

/// The features that add flags or commands, and whether this program has them.
const FEATURES: [(&str, bool); 4] = [
    ("remote", cfg!(feature = "remote")),
    ("cli", cfg!(feature = "cli")),
    ("mcp", cfg!(feature = "mcp")),
    ("hub", cfg!(feature = "hub")),
];

/// Names the missing features if a flag or command is unknown, which may be because of them.
pub(super) fn explain(error: Error) -> Error {
    let context = match error.kind() == ErrorKind::InvalidSubcommand {
        true => ContextKind::InvalidSubcommand,
        false => ContextKind::InvalidArg,
    };
    let kinds = [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand];
    let missing = missing(&FEATURES);
    if let Some(ContextValue::String(argument)) = error.get(context)
        && kinds.contains(&error.kind())
        && !missing.is_empty()
    {
        let missing = missing.join("`, `");
        let text = format!(
            "unexpected argument `{argument}`: this program was built without the features \
             `{missing}`"
        );
        return Cli::command().error(error.kind(), text);
    }
    error
}

fn missing(features: &[(&'static str, bool)]) -> Vec<&'static str> {
    let missing = features.iter().filter(|(_, is_compiled)| !is_compiled);
    missing.map(|(feature, _)| *feature).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_arguments_are_errors_that_name_the_missing_features() {
        for argument in ["--no-such-flag", "no-such-command"] {
            let error = Cli::read(["exec-server", argument]).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let text = error.to_string();
            assert!(text.contains(argument), "{text}");
            let names_features = text.contains("built without the features");
            assert_eq!(names_features, !missing(&FEATURES).is_empty(), "{text}");
        }
    }

    #[test]
    fn only_what_is_not_compiled_in_is_missing() {
        let features = [("remote", false), ("cli", true), ("hub", false)];
        assert_eq!(missing(&features), ["remote", "hub"]);
        assert!(missing(&features[1..2]).is_empty());
    }
}

//! What could not be done to a file, for a person.

use exec_env::filesystem::FileError;

use crate::command::failure::{Failure, FailureKind};

/// Says what could not be done to a file. The text names the file; numbers of the host's errors are
/// left away.
pub(crate) fn file_failure(error: &FileError) -> Failure {
    let text = one_line(&error.to_string());
    let failure = |kind| Failure::new(kind, plain(&text));
    match error {
        FileError::NotFound(_) => failure(FailureKind::NotFound),
        FileError::Disconnected(_) => {
            failure(FailureKind::Lost).next("run the same command again to go on")
        }
        FileError::Refused(_) => failure(FailureKind::Usage),
        FileError::Invalid(_) | FileError::Host(_) | FileError::Remote(_) | _ => {
            failure(FailureKind::Failed)
        }
    }
}

/// Puts a text on one line: patterns are explained on several.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

/// Leaves away the number at the end: its text stands before it.
fn plain(text: &str) -> &str {
    match text.rsplit_once(" (os error ") {
        Some((plain, number)) if number.trim_end_matches(')').parse::<u32>().is_ok() => plain,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_told_from_others_and_without_its_number() {
        let text = "cannot open `/none`: No such file or directory (os error 2)".to_owned();
        let failure = file_failure(&FileError::NotFound(text));
        assert_eq!(failure.kind, FailureKind::NotFound);
        assert_eq!(
            failure.what,
            "cannot open `/none`: No such file or directory"
        );
        let text = "cannot open `/x`: Permission denied (os error 13)".to_owned();
        let failure = file_failure(&FileError::Invalid(text));
        assert_eq!(failure.kind, FailureKind::Failed);
        assert_eq!(failure.what, "cannot open `/x`: Permission denied");
    }

    #[test]
    fn an_explanation_of_several_lines_is_put_on_one() {
        let text = "pattern cannot be used:\n    (\n    ^\nunclosed group".to_owned();
        let failure = file_failure(&FileError::Refused(text));
        assert_eq!(failure.kind, FailureKind::Usage);
        assert_eq!(failure.what, "pattern cannot be used: ( ^ unclosed group");
    }

    #[test]
    fn a_text_without_a_number_is_kept() {
        for text in ["odd (os error", "odd (os error x)", "plain"] {
            assert_eq!(plain(text), text);
        }
    }
}

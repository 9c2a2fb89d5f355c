//! Globs as agents type them, made into what is held against the path below a directory.

use exec_wire::path_uri::PathUri;

use crate::mcp::{answer::Complaint, work::Work};

/// Reads a glob for what is below a directory: `./x` and an absolute one begin there.
pub(super) fn glob(work: &Work, directory: &PathUri, typed: &str) -> Result<String, Complaint> {
    below(&work.native(directory), typed)
}

fn below(directory: &str, typed: &str) -> Result<String, Complaint> {
    if typed.starts_with('!') {
        return Err(Complaint::new(
            "`glob` says what is wanted, not what is left out: a leading `!` is not understood (write \
             `[!]` for a name that begins with one)",
        ));
    }
    if typed.split('/').any(|name| name == "..") {
        return Err(Complaint::new(
            "`glob` names what is below the directory, so it has no `..`: name another directory in `path`",
        ));
    }
    // A leading slash is the directory itself, for whoever looks.
    let from_there = match typed.strip_prefix('/') {
        None => typed.starts_with("./").then_some(typed),
        Some(_) => {
            let root = directory.trim_end_matches('/');
            let rest = typed
                .strip_prefix(root)
                .filter(|rest| rest.starts_with('/'));
            Some(rest.ok_or_else(|| {
                Complaint(format!(
                    "`glob` names what is below `{directory}`: begin it with that, with `./`, or with \
                     neither; or name another directory in `path`"
                ))
            })?)
        }
    };
    let names = from_there.unwrap_or(typed).split('/');
    let names: Vec<&str> = names.filter(|name| !matches!(*name, "" | ".")).collect();
    let names = names.join("/");
    Ok(match from_there {
        Some(_) => format!("/{names}"),
        None => names,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_begins_at_the_directory_if_it_says_so() {
        for (typed, read) in [
            ("*.rs", "*.rs"),
            ("./*.rs", "/*.rs"),
            ("/srv/*.rs", "/*.rs"),
            ("/srv//src/**/*.rs", "/src/**/*.rs"),
            ("src/./*.rs", "src/*.rs"),
            ("**/[!a]*", "**/[!a]*"),
            ("a..b", "a..b"),
        ] {
            assert_eq!(below("/srv", typed).unwrap(), read, "{typed}");
        }
        assert_eq!(below("/", "/etc/*").unwrap(), "/etc/*");
        for typed in ["!x", "../x", "a/../x", "/srvx/x", "/x"] {
            assert!(below("/srv", typed).is_err(), "{typed}");
        }
    }
}

//! The variables of a command that nobody sits in front of: no pager waits for a key, nothing is coloured
//! without a terminal, and text is UTF-8.

use std::collections::BTreeMap;

/// Returns what is laid over the host's variables, and `own` over that.
pub(super) fn quiet(
    terminal: Terminal,
    own: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let always = [
        ("PAGER", "cat"),
        ("GIT_PAGER", "cat"),
        ("GH_PAGER", "cat"),
        ("LANG", "C.UTF-8"),
        ("LC_ALL", "C.UTF-8"),
    ];
    let by_terminal: &[_] = match terminal {
        Terminal::None => &[("TERM", "dumb"), ("NO_COLOR", "1")],
        Terminal::Given => &[("TERM", "xterm-256color")],
    };
    let pairs = always.iter().chain(by_terminal);
    let mut variables: BTreeMap<String, String> = pairs
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    variables.extend(own.clone());
    variables
}

/// Whether a command has a terminal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Terminal {
    None,
    Given,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_the_last_word_and_a_terminal_has_colours() {
        let own = BTreeMap::from([("PAGER".to_owned(), "less".to_owned())]);
        let dumb = quiet(Terminal::None, &own);
        assert_eq!(dumb["PAGER"], "less");
        assert_eq!(dumb["GIT_PAGER"], "cat");
        assert_eq!(
            (dumb["TERM"].as_str(), dumb["NO_COLOR"].as_str()),
            ("dumb", "1")
        );
        let terminal = quiet(Terminal::Given, &own);
        assert_eq!(terminal["TERM"], "xterm-256color");
        assert!(!terminal.contains_key("NO_COLOR"));
    }
}

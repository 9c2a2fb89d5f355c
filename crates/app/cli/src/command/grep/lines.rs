//! Matches as lines: each line of a file once, in order, with its neighbours.

use exec_wire::{fs::SearchMatch, path_uri::PathUri};

use crate::command::{files::relative, print::printable};

/// How lines look.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Paint {
    /// With colours, and nothing that a terminal would take for a command.
    Terminal,
    /// The same without colours.
    Sober,
    /// As they are.
    Plain,
}

/// Returns the text of matches, as `grep -n` prints them.
pub(super) fn lines(
    matches: &[SearchMatch],
    name: impl Fn(&PathUri) -> String,
    context: usize,
    paint: Paint,
) -> String {
    let mut text = String::new();
    let mut last: Option<(&PathUri, u64)> = None;
    for (number, found) in matches.iter().enumerate() {
        let name = name(&found.path);
        let first = found.line.saturating_sub(found.before.len() as u64);
        let shown_to = last.filter(|(path, _)| **path == found.path);
        let shown_to = shown_to.map_or(0, |(_, line)| line);
        if context > 0 && last.is_some() && (shown_to == 0 || first > shown_to + 1) {
            text.push_str("--\n");
        }
        for (line, before) in (first..).zip(&found.before) {
            if line > shown_to {
                add(&mut text, &name, line, '-', before, paint);
            }
        }
        add(&mut text, &name, found.line, ':', &found.text, paint);
        let next = matches
            .get(number + 1)
            .filter(|next| next.path == found.path);
        let next = next.map_or(u64::MAX, |next| next.line);
        let mut to = found.line;
        for (line, after) in (found.line + 1..).zip(&found.after) {
            if line >= next {
                break;
            }
            add(&mut text, &name, line, '-', after, paint);
            to = line;
        }
        last = Some((&found.path, to));
    }
    text
}

/// Returns a line for each file with matches: its name, and the number of matching lines if `counts`.
pub(super) fn summary(
    matches: &[SearchMatch],
    name: impl Fn(&PathUri) -> String,
    counts: bool,
    paint: Paint,
) -> String {
    let files = matches.chunk_by(|one, other| one.path == other.path);
    let line = |file: &[SearchMatch]| {
        let name = name(&file[0].path);
        let name = match paint {
            Paint::Plain => name,
            Paint::Sober => printable(&name),
            Paint::Terminal => format!("\x1b[35m{}\x1b[0m", printable(&name)),
        };
        match counts {
            true => format!("{name}:{}\n", file.len()),
            false => format!("{name}\n"),
        }
    };
    files.map(line).collect()
}

fn add(text: &mut String, name: &str, line: u64, mark: char, content: &str, paint: Paint) {
    text.push_str(&match paint {
        Paint::Plain => format!("{name}{mark}{line}{mark}{content}\n"),
        Paint::Sober => {
            let (name, content) = (printable(name), without_commands(content));
            format!("{name}{mark}{line}{mark}{content}\n")
        }
        Paint::Terminal => {
            let (name, content) = (printable(name), without_commands(content));
            format!("\x1b[35m{name}\x1b[0m{mark}\x1b[32m{line}\x1b[0m{mark}{content}\n")
        }
    });
}

/// Tabs stay; what would command a terminal does not.
fn without_commands(text: &str) -> String {
    let visible = |c: char| if c.is_control() && c != '\t' { '?' } else { c };
    text.chars().map(visible).collect()
}

/// Returns how the files of a search are named.
pub(super) fn names<'a>(typed: &'a str, root: &'a PathUri) -> impl Fn(&PathUri) -> String + 'a {
    move |path| match path == root {
        true => typed.to_owned(),
        false => relative(typed, root, path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, line: u64, before: &[&str], after: &[&str]) -> SearchMatch {
        let owned = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect();
        SearchMatch {
            path: PathUri::parse(path).unwrap(),
            line,
            column: 1,
            text: format!("hit {line}"),
            before: owned(before),
            after: owned(after),
        }
    }

    fn name(path: &PathUri) -> String {
        path.as_str().replace("file:///", "")
    }

    #[test]
    fn neighbours_of_two_matches_are_printed_once() {
        let matches = [
            found("file:///a", 2, &["1"], &["3", "4"]),
            found("file:///a", 4, &["2", "3"], &["5"]),
            found("file:///a", 9, &["8"], &[]),
            found("file:///b", 1, &[], &[]),
        ];
        let text = lines(&matches, name, 2, Paint::Plain);
        let expected =
            "a-1-1\na:2:hit 2\na-3-3\na:4:hit 4\na-5-5\n--\na-8-8\na:9:hit 9\n--\nb:1:hit 1\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn without_context_nothing_stands_between_matches() {
        let matches = [
            found("file:///a", 2, &[], &[]),
            found("file:///b", 7, &[], &[]),
        ];
        let text = lines(&matches, name, 0, Paint::Plain);
        assert_eq!(text, "a:2:hit 2\nb:7:hit 7\n");
    }

    #[test]
    fn a_line_cannot_command_a_terminal() {
        assert_eq!(without_commands("a\tb\x1b[2J"), "a\tb?[2J");
    }
}

//! Links between documents: a relative one leads to a file, and its anchor to a heading.
//! Not here: links to other hosts.

use super::{
    finding::Finding,
    tree::{File, Tree},
};

/// Checks the links of one document.
pub(crate) fn check(tree: &Tree, file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in prose(&file.text) {
        for target in targets(&line) {
            if let Some(reason) = refuse(tree, file, target) {
                findings.push(Finding::at(
                    &file.path,
                    number,
                    format!("`{target}` {reason}"),
                ));
            }
        }
    }
    findings
}

fn refuse(tree: &Tree, from: &File, target: &str) -> Option<&'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() {
        Some(from.path.clone())
    } else {
        resolve(&from.path, path)
    };
    let Some(path) = path.filter(|path| path.is_empty() || tree.paths.contains(path)) else {
        return Some("leads nowhere");
    };
    let text = tree.text(&path)?;
    (!anchor.is_empty() && !anchors(text).any(|heading| heading == anchor))
        .then_some("names no heading")
}

/// Resolves a relative path; `None` if it leaves the workspace.
fn resolve(from: &str, path: &str) -> Option<String> {
    let (folder, _) = from.rsplit_once('/').unwrap_or(("", from));
    let mut names: Vec<&str> = folder.split('/').filter(|name| !name.is_empty()).collect();
    if path.starts_with('/') {
        names.clear();
    }
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                names.pop()?;
            }
            name => names.push(name),
        }
    }
    Some(names.join("/"))
}

/// Returns the lines that are no code, counted from 1, with code spans blank.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut fence: Option<&str> = None;
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        let start = line.trim_start();
        let mark = ["```", "~~~"]
            .into_iter()
            .find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, None) => return Some((number, without_code(line))),
            (None, Some(_)) => fence = mark,
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
        }
        None
    })
}

/// Removes what stands between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// Returns the targets of `[text](target)` and of `[name]: target`.
fn targets(line: &str) -> Vec<&str> {
    let inline = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let definition = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]:"))
        .map(|(_, target)| target.trim());
    // A title may follow the target.
    let bare = |target: &'_ str| target.split_whitespace().next().map(str::len);
    inline
        .chain(definition)
        .filter_map(|target| bare(target).map(|length| &target.trim_start()[..length]))
        .map(|target| target.trim_start_matches('<').trim_end_matches('>'))
        .collect()
}

/// Returns the anchors of a document's headings, as code hosts make them.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let mut fenced = false;
    text.lines().filter_map(move |line| {
        if line.starts_with("```") {
            fenced = !fenced;
        }
        let heading = line.trim_start_matches('#');
        (!fenced && heading.len() < line.len() && heading.starts_with(' ')).then(|| slug(heading))
    })
}

fn slug(heading: &str) -> String {
    let filtered = heading
        .trim()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    filtered
        .flat_map(char::to_lowercase)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let markdown = vec![file("A.md", "# One `two`, three\n```\n# not one\n```\n")];
        let paths = ["A.md", "docs", "docs/b.md", "x.svg"]
            .map(str::to_owned)
            .into();
        Tree {
            paths,
            markdown,
            ..Tree::default()
        }
    }

    fn faults(path: &str, text: &str) -> Vec<String> {
        let file = File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        check(&tree(), &file)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn links_that_lead_somewhere_are_fine() {
        for text in [
            "[a](A.md) ![b](x.svg \"title\")",
            "[a](docs/) [b](./docs/b.md)",
            "[a](https://example.org/x) [b](mailto:x@example.org)",
            "[a](A.md#one-two-three)",
            "`[a](nope.md)`",
            "```\n[a](nope.md)\n```",
            "[a]: A.md",
        ] {
            assert_eq!(faults("B.md", text), Vec::<String>::new(), "{text}");
        }
        assert_eq!(
            faults("docs/b.md", "[a](../A.md) [b](/A.md)"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn dead_links_are_told_with_their_line() {
        assert_eq!(
            faults("B.md", "x\n[a](nope.md)"),
            ["B.md:2: `nope.md` leads nowhere"]
        );
        assert_eq!(
            faults("docs/b.md", "[a](A.md)"),
            ["docs/b.md:1: `A.md` leads nowhere"]
        );
        assert_eq!(
            faults("B.md", "[a](../A.md)"),
            ["B.md:1: `../A.md` leads nowhere"]
        );
        assert_eq!(
            faults("B.md", "[a]: nope.md"),
            ["B.md:1: `nope.md` leads nowhere"]
        );
        assert_eq!(
            faults("B.md", "[a](A.md#not-one)"),
            ["B.md:1: `A.md#not-one` names no heading"]
        );
    }
}

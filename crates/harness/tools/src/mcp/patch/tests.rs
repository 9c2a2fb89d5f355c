//! Valid and invalid patches.

use proptest::prelude::*;

use super::{HunkLine, Patch, PatchHunk, PatchOperation, apply};

fn update(patch: &str) -> Vec<PatchHunk> {
    let operation = Patch::parse(patch).unwrap().operations.remove(0);
    let PatchOperation::Update { hunks, .. } = operation else {
        panic!("not an update: {operation:?}");
    };
    hunks
}

fn patched(old: &str, body: &str) -> Result<String, String> {
    let hunks = update(&format!(
        "*** Begin Patch\n*** Update File: f\n{body}*** End Patch\n"
    ));
    apply(old, &hunks).map_err(|error| error.to_string())
}

fn refused(patch: &str) -> String {
    Patch::parse(patch).unwrap_err().to_string()
}

#[test]
fn every_kind_of_operation_is_parsed() {
    let patch = "\n*** Begin Patch\n*** Add File: new.txt\n+one\n+\n+*** two\n*** Delete File: old.txt\n\
                 *** Update File: a.rs\n*** Move to: b.rs\n@@ fn main()\n keep\n-old\n+new\n*** End of File\n\
                 *** End Patch\n\n";
    let operations = Patch::parse(patch).unwrap().operations;
    let expected = [
        PatchOperation::Add {
            path: "new.txt".to_owned(),
            content: "one\n\n*** two\n".to_owned(),
        },
        PatchOperation::Delete {
            path: "old.txt".to_owned(),
        },
        PatchOperation::Update {
            path: "a.rs".to_owned(),
            move_to: Some("b.rs".to_owned()),
            hunks: vec![PatchHunk {
                line: 10,
                headers: vec!["fn main()".to_owned()],
                lines: vec![
                    HunkLine::Keep("keep".to_owned()),
                    HunkLine::Remove("old".to_owned()),
                    HunkLine::Insert("new".to_owned()),
                ],
                at_end: true,
                unmarked_end: 0,
            }],
        },
    ];
    assert_eq!(operations, expected);
}

#[test]
fn move_without_hunks_is_parsed() {
    let patch = "*** Begin Patch\n*** Update File: a\n*** Move to: b\n*** End Patch";
    let operations = Patch::parse(patch).unwrap().operations;
    assert!(matches!(
        &operations[..],
        [PatchOperation::Update { move_to: Some(to), hunks, .. }] if to == "b" && hunks.is_empty()
    ));
}

#[test]
fn parse_errors_name_the_patch_line() {
    let cases = [
        ("", "patch line 1: expected `*** Begin Patch`"),
        ("hello", "patch line 1: expected `*** Begin Patch`"),
        (
            "*** Begin Patch\n*** Add File: a\n+x",
            "patch line 3: the patch ends without `*** End Patch`",
        ),
        (
            "*** Begin Patch\n*** End Patch",
            "patch line 2: the patch changes no file",
        ),
        (
            "*** Begin Patch\n*** Add File: a\nx\n*** End Patch",
            "patch line 3: every line of the new file `a` begins with `+`",
        ),
        (
            "*** Begin Patch\n*** Update File: a\n*** End Patch",
            "patch line 2: the update of `a` has no hunk",
        ),
        (
            "*** Begin Patch\n*** Update File: a\n@@\n same\n*** End Patch",
            "patch line 3: hunk 1 of `a` changes nothing",
        ),
        (
            "*** Begin Patch\n*** Update File: a\n@@\n-a\n+b\n@@\n*c\n*** End Patch",
            "patch line 7: hunk 2 of `a`: a line begins with ` `, `-`, `+` or `@@`, found `*c`",
        ),
        (
            "*** Begin Patch\n*** Delete File:  \n*** End Patch",
            "patch line 2: expected",
        ),
        (
            "*** Begin Patch\n*** Delete File: a\n*** End Patch\nmore",
            "patch line 4: nothing may follow `*** End Patch`",
        ),
    ];
    for (patch, expected) in cases {
        let error = refused(patch);
        assert!(error.starts_with(expected), "{patch:?}: {error}");
    }
}

#[test]
fn hunks_are_applied_in_file_order() {
    let old = "a\nb\nc\nd\ne\n";
    let new = patched(old, "@@\n a\n-b\n+B\n@@\n-d\n+D\n+D2\n e\n").unwrap();
    assert_eq!(new, "a\nB\nc\nD\nD2\ne\n");
    let error = patched(old, "@@\n-d\n+D\n@@\n-b\n+B\n").unwrap_err();
    assert!(error.contains("hunk 2 (patch line 6)"), "{error}");
    assert!(error.contains("at line 2, before"), "{error}");
}

#[test]
fn headers_disambiguate_equal_lines() {
    let old = "class A\n  def f\n    x\nclass B\n  def f\n    x\n";
    let new = patched(old, "@@ class B\n@@ def f\n-    x\n+    y\n").unwrap();
    assert_eq!(new, "class A\n  def f\n    x\nclass B\n  def f\n    y\n");
    let new = patched(old, "@@ class B\n-class B\n+class C\n").unwrap();
    assert_eq!(new, "class A\n  def f\n    x\nclass C\n  def f\n    x\n");
}

#[test]
fn end_of_file_marker_anchors_the_hunk() {
    let old = "x\ny\nx\n";
    let new = patched(old, "@@\n-x\n+z\n*** End of File\n").unwrap();
    assert_eq!(new, "x\ny\nz\n");
    let error = patched(old, "@@\n-y\n+z\n*** End of File\n").unwrap_err();
    assert!(error.contains("the end of the file is not"), "{error}");
}

#[test]
fn insertions_without_context_go_to_the_end_or_after_the_header() {
    assert_eq!(patched("a\n", "@@\n+b\n").unwrap(), "a\nb\n");
    assert_eq!(patched("a\nc\n", "@@ a\n+b\n").unwrap(), "a\nb\nc\n");
    assert_eq!(patched("", "@@\n+b\n").unwrap(), "b\n");
}

#[test]
fn kept_lines_keep_their_spelling_and_line_endings() {
    let old = "say \u{201c}hi\u{201d}  \r\nold\r\nlast";
    let new = patched(old, "@@\n say \"hi\"\n-old\n+new\n").unwrap();
    assert_eq!(new, "say \u{201c}hi\u{201d}  \r\nnew\r\nlast");
    assert_eq!(
        patched("last", "@@\n last\n+more\n").unwrap(),
        "last\nmore\n"
    );
}

#[test]
fn exact_match_wins_over_an_earlier_fuzzy_one() {
    let new = patched("  x\nx\n", "@@\n-x\n+y\n").unwrap();
    assert_eq!(new, "  x\ny\n");
}

#[test]
fn marked_blank_line_is_context() {
    let old = "a\nb\nc\n\na\nb\n\nd\n";
    let new = patched(old, "@@\n a\n-b\n+B\n \n").unwrap();
    assert_eq!(new, "a\nb\nc\n\na\nB\n\nd\n");
    // Without a prefix, it may only separate the hunk from the next section.
    let new = patched(old, "@@\n a\n-b\n+B\n\n").unwrap();
    assert_eq!(new, "a\nB\nc\n\na\nb\n\nd\n");
}

#[test]
fn matching_many_equal_lines_is_linear() {
    let body = format!("@@\n{}-no\n", " \n".repeat(30_000));
    let error = patched(&"\n".repeat(60_000), &body).unwrap_err();
    assert!(error.contains("are not in the file"), "{}", error.len());
    // A match that starts inside a partial match is found.
    let new = patched("a\na\nb\na\na\nc\n", "@@\n a\n a\n-c\n+d\n").unwrap();
    assert_eq!(new, "a\na\nb\na\na\nd\n");
}

#[test]
fn missing_lines_are_shown_in_the_error() {
    let error = patched("a\n", "@@\n a\n-b\n+c\n").unwrap_err();
    assert_eq!(
        error,
        "hunk 1 (patch line 3): these lines are not in the file:\na\nb"
    );
}

proptest! {
    #[test]
    fn single_line_patch_equals_a_replacement(
        lines in prop::collection::vec("[a-z]{0,3}", 1..20),
        at in any::<prop::sample::Index>(),
    ) {
        let at = at.index(lines.len());
        let old: String = lines.iter().map(|line| format!("{line}\n")).collect();
        // All earlier lines are context, so that the match is unique.
        let context: String = lines[..at].iter().map(|line| format!(" {line}\n")).collect();
        let body = format!("@@\n{context}-{}\n+NEW\n", lines[at]);
        let mut expected = lines.clone();
        expected[at] = "NEW".to_owned();
        let expected: String = expected.iter().map(|line| format!("{line}\n")).collect();
        prop_assert_eq!(patched(&old, &body).unwrap(), expected);
    }

    #[test]
    fn parser_never_panics(text in "(\\*\\*\\* (Begin Patch|End Patch|Add File: a|Update File: b|Move to: c|End of File)|@@|@@ x|[ +-]?[a-z]?|\n){0,30}") {
        drop(Patch::parse(&text.replace("***", "\n***")));
    }
}

#[test]
fn unified_diff_ranges_are_ignored() {
    for header in [
        "@@ -1,3 +1,3 @@",
        "@@ -1 +1 @@",
        "@@ -10,0 +11,2 @@ fn main() {",
        "@@ -1,3 +1,3",
    ] {
        let body = format!("{header}\n-one\n+1\n");
        assert_eq!(
            patched("fn main() {\none\n", &body).unwrap(),
            "fn main() {\n1\n",
            "{header}"
        );
    }
}

#[test]
fn code_fences_and_heredocs_are_stripped() {
    let patch = "*** Begin Patch\n*** Delete File: f\n*** End Patch";
    let expected = Patch::parse(patch).unwrap();
    for (before, after) in [
        ("```\n", "\n```\n"),
        ("```diff\n", "\n```"),
        ("<<'EOF'\n", "\nEOF\n"),
        ("<<EOF\n", "\nEOF"),
        ("apply_patch <<\"PATCH\"\n", "\nPATCH\n"),
        ("```sh\napply_patch <<'EOF'\n", "\nEOF\n```\n"),
    ] {
        let wrapped = format!("{before}{patch}{after}");
        assert_eq!(Patch::parse(&wrapped).unwrap(), expected, "{wrapped}");
    }
    assert!(refused(&format!("{patch}\nmore\n")).contains("nothing may follow"));
    assert!(refused(&format!("<<'EOF'\n{patch}\nrm -rf x\nEOF\n")).contains("nothing may follow"));
}

#[test]
fn byte_order_mark_is_preserved() {
    let old = "\u{feff}one\ntwo\n";
    assert_eq!(
        patched(old, "@@\n-one\n+1\n two\n").unwrap(),
        "\u{feff}1\ntwo\n"
    );
    assert_eq!(
        patched(old, "@@ one\n-two\n+2\n").unwrap(),
        "\u{feff}one\n2\n"
    );
}

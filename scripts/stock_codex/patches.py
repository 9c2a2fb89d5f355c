"""The patches that the scripted model sends, and what they make of the files they are about.

Not here: the tool that takes them (`file_tools`).
"""

from __future__ import annotations

from project import Project, Tree

LONG_TEXT = "".join(f"line {i} of a long file\n" for i in range(40000))
# Percent signs, spaces, a number sign and letters beyond ASCII have to survive the file URI.
ODD_NAME = "a b/100% #1 grüße 世界.txt"

GOOD_PATCH = f"""\
*** Begin Patch
*** Add File: deep/er/new.txt
+first
+grüße, 世界 🙂
*** Add File: {ODD_NAME}
+odd
*** Update File: script.sh
@@
 #!/bin/sh
-echo old
+echo new
*** Update File: long.txt
@@
 line 19999 of a long file
-line 20000 of a long file
+line 20000 is another
 line 20001 of a long file
*** Delete File: gone.txt
*** Update File: from.txt
*** Move to: moved/to.txt
@@
 keep
-old
+new
*** End Patch
"""
# The first part alone could be applied, the second finds no such line.
STALE_PATCH = """\
*** Begin Patch
*** Add File: half.txt
+half
*** Update File: script.sh
@@
 #!/bin/sh
-echo this was never there
+echo changed
*** End Patch
"""
MISSING_PATCH = """\
*** Begin Patch
*** Delete File: script.sh
*** Update File: nowhere.txt
@@
-some
+thing
*** End Patch
"""
BELOW_FILE_PATCH = """\
*** Begin Patch
*** Add File: script.sh/child.txt
+below a file
*** End Patch
"""
# The CLI sees that this one leads outside, and does not send it.
OUTSIDE_PATCH = """\
*** Begin Patch
*** Add File: ../outside/new.txt
+outside
*** End Patch
"""
# It does not see through links, so that these two are for the server to refuse.
LINK_PATCH = """\
*** Begin Patch
*** Add File: link/new.txt
+outside
*** End Patch
"""
LINKED_FILE_PATCH = """\
*** Begin Patch
*** Update File: link/file.txt
@@
-old
+new
*** End Patch
"""


def write_sources(project: Project) -> None:
    """Writes the files that the patches are about."""
    project.add("script.sh", b"#!/bin/sh\necho old\n", executable=True)
    project.add("long.txt", LONG_TEXT.encode())
    project.add("gone.txt", b"bye\n")
    project.add("from.txt", b"keep\nold\n")


def after_good_patch(before: Tree) -> Tree:
    """Returns the files as the good patch must leave them."""
    after = {name: before[name] for name in before if name not in ("gone.txt", "from.txt")}
    plain = before["long.txt"][0]
    changed = LONG_TEXT.replace("line 20000 of a long file\n", "line 20000 is another\n")
    after["deep/er/new.txt"] = (plain, "first\ngrüße, 世界 🙂\n".encode())
    after[ODD_NAME] = (plain, b"odd\n")
    after["script.sh"] = (before["script.sh"][0], b"#!/bin/sh\necho new\n")
    after["long.txt"] = (plain, changed.encode())
    after["moved/to.txt"] = (plain, b"keep\nnew\n")
    return after

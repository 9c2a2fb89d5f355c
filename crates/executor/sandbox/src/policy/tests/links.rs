//! Symbolic links: rules apply to their targets.

use super::*;

#[test]
fn entry_applies_to_the_target_of_a_link() {
    let tree = "/ws/\n/real/data/\n/link -> real";
    check(
        tree,
        "read :root\nwrite /link/data",
        &["read", "write /real/data"],
    );
    check(
        tree,
        "write /link\nread /real",
        &["hide", "write /real", "link /link -> real"],
    );
    check(
        tree,
        "read :root\nwrite /ws\ndeny /link",
        &["read", "hide /real", "write /ws"],
    );
}

#[test]
fn link_in_a_writable_directory_cannot_be_replaced() {
    let tree = "/ws/a/\n/ws/link -> /secret\n/ws/way -> a\n/ws/a/x\n/secret/";
    let write = "read :root\nwrite /ws\n";
    check(
        tree,
        &format!("{write}deny /ws/link"),
        &["read", "hide /secret", "write /ws", "no /ws/link"],
    );
    check(
        tree,
        &format!("{write}read /ws/way/x"),
        &["read", "write /ws", "read /ws/a/x", "no /ws/way"],
    );
}

#[test]
fn replaceable_link_grants_no_access() {
    let tree = "/ws/link -> /secret\n/ws/in -> a\n/ws/a/\n/secret/x\n/home/link -> /secret";
    for (entries, expected) in [
        ("write /ws\nwrite /ws/link", &["hide", "write /ws"][..]),
        (
            "write /ws\nread /ws/link",
            &["hide", "write /ws", "no /ws/link"],
        ),
        (
            "write :root\ndeny /secret\nread /home/link/x",
            &["read", "write /", "hide /secret", "no /home/link"],
        ),
        // Restrictions of a replaceable link still apply.
        (
            "write /ws\nread /ws/in",
            &["hide", "write /ws", "read /ws/a", "no /ws/in"],
        ),
        (
            "write /ws\ndeny /ws/in",
            &["hide", "write /ws", "hide /ws/a", "no /ws/in"],
        ),
        // This link is not replaceable.
        (
            "write /ws\nwrite /home/link",
            &[
                "hide",
                "write /secret",
                "write /ws",
                "link /home/link -> /secret",
            ],
        ),
        (
            "write /home\nwrite /home/link\nwrite /ws/link",
            &[
                "hide",
                "write /home",
                "write /secret",
                "link /ws/link -> /secret",
            ],
        ),
    ] {
        check(tree, entries, expected);
    }
}

#[test]
fn target_of_a_dangling_link_cannot_be_created() {
    let tree = "/ws/gone -> data/x\n/ws/loop -> loop\n/out -> /ws/new";
    check(
        tree,
        "write /ws\nread /ws/gone\nread /ws/loop\ndeny /out",
        &[
            "hide",
            "write /ws",
            "no /ws/data",
            "no /ws/gone",
            "no /ws/loop",
            "no /ws/new",
        ],
    );
}

#[test]
fn hidden_base_has_the_links_to_visible_paths() {
    let tree = "/usr/bin/\n/usr/lib -> share\n/usr/share/\n/bin -> usr/bin\n/lib -> /usr/lib\n/sbin -> gone\n/x -> usr";
    check(tree, "read :minimal\ndeny /x", &["hide"]);
    check(
        tree,
        "read :minimal",
        &[
            "hide",
            "read /usr",
            "link /bin -> usr/bin",
            "link /lib -> /usr/lib",
        ],
    );
    check(
        tree,
        "read /lib",
        &[
            "hide",
            "read /usr/share",
            "link /lib -> /usr/lib",
            "link /usr/lib -> share",
        ],
    );
}

#[test]
fn kernel_files_are_never_writable() {
    let tree = "/proc/sys/\n/proc/irq/\n/proc/sysrq-trigger\n/proc/1/\n/sys/class/\n/dev -> sys/class\n/ws/";
    check(
        tree,
        "write /proc\nwrite /sys/class\nwrite /dev",
        &[
            "hide",
            "read /proc",
            "read /sys/class",
            "link /dev -> sys/class",
        ],
    );
    check(
        tree,
        "write :root\nread /ws",
        &[
            "read",
            "write /",
            "read /sys",
            "read /ws",
            "read /proc/irq",
            "read /proc/sys",
            "read /proc/sysrq-trigger",
        ],
    );
    check(
        tree,
        "write :root\ndeny /sys\nwrite /proc/sys\nread /ws",
        &[
            "read",
            "write /",
            "hide /sys",
            "read /ws",
            "read /proc/irq",
            "read /proc/sys",
            "read /proc/sysrq-trigger",
        ],
    );
}

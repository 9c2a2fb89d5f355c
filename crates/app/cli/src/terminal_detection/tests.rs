//! Tests with the variables that terminals set.

use std::ffi::OsString;

use super::*;

fn terminal(variables: &[(&str, &str)]) -> DetectedTerminal {
    DetectedTerminal::detect(&|name| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| OsString::from(value))
    })
}

#[test]
fn terminals_are_detected_by_their_variables() {
    for (variables, token) in [
        (&[][..], "unknown"),
        (&[("TERM", "")], "unknown"),
        (&[("TERM", "xterm-256color")], "xterm-256color"),
        (&[("TERM", "linux")], "linux"),
        (&[("TERM", "foot-extra")], "foot"),
        (&[("TERM", "footage")], "footage"),
        (&[("TERM", "xterm-kitty")], "kitty"),
        (&[("TERM", "xterm-ghostty")], "ghostty"),
        (&[("TERM", "alacritty")], "alacritty"),
        (
            &[
                ("TERM_PROGRAM", "iTerm.app"),
                ("TERM_PROGRAM_VERSION", "3.5.0"),
            ],
            "iterm2/3.5.0",
        ),
        (
            &[
                ("TERM_PROGRAM", "Apple_Terminal"),
                ("TERM_PROGRAM_VERSION", "453"),
            ],
            "apple-terminal/453",
        ),
        (
            &[
                ("TERM_PROGRAM", "vscode"),
                ("TERM_PROGRAM_VERSION", "1.95.1"),
            ],
            "vscode/1.95.1",
        ),
        (&[("TERM_PROGRAM", "WarpTerminal")], "warp"),
        (&[("TERM_PROGRAM", "ghostty")], "ghostty"),
        (&[("TERM_PROGRAM", "zed")], "zed"),
        (
            &[("TERM_PROGRAM", "Hyper"), ("TERM_PROGRAM_VERSION", "3.4.1")],
            "Hyper/3.4.1",
        ),
        (
            &[("WEZTERM_VERSION", "20240203-110809")],
            "wezterm/20240203-110809",
        ),
        (
            &[("TERM_PROGRAM", "WezTerm"), ("WEZTERM_VERSION", "7")],
            "wezterm/7",
        ),
        (&[("KITTY_WINDOW_ID", "1")], "kitty"),
        (&[("ALACRITTY_SOCKET", "/run/x")], "alacritty"),
        (
            &[
                ("ITERM_SESSION_ID", "w0t0p0"),
                ("LC_TERMINAL_VERSION", "3.4"),
            ],
            "iterm2/3.4",
        ),
        (
            &[("VTE_VERSION", "7600"), ("TERM", "xterm-256color")],
            "vte/7600",
        ),
        (&[("KONSOLE_VERSION", "230804")], "konsole/230804"),
        (&[("WT_SESSION", "a-b")], "windows-terminal"),
        (&[("GHOSTTY_RESOURCES_DIR", "/x")], "ghostty"),
        (&[("XTERM_VERSION", "XTerm(390)")], "xterm/XTerm_390_"),
        (&[("TERMINAL_EMULATOR", "JetBrains-JediTerm")], "jetbrains"),
        // The terminal's own variables win over inherited ones.
        (
            &[("TERM_PROGRAM", "vscode"), ("KITTY_WINDOW_ID", "1")],
            "vscode",
        ),
        (&[("TERM_PROGRAM", "Hyper"), ("VTE_VERSION", "1")], "Hyper"),
    ] {
        assert_eq!(terminal(variables).token(), token, "{variables:?}");
    }
}

#[test]
fn multiplexer_and_ssh_are_detected_with_the_terminal() {
    for (variables, token) in [
        (
            &[
                ("TMUX", "/tmp/tmux-1/default,1,0"),
                ("TERM", "tmux-256color"),
                ("TERM_PROGRAM", "tmux"),
                ("TERM_PROGRAM_VERSION", "3.4"),
                ("KITTY_WINDOW_ID", "1"),
            ][..],
            "kitty tmux/3.4",
        ),
        (
            &[("TERM_PROGRAM", "tmux"), ("TERM_PROGRAM_VERSION", "3.3a")],
            "unknown tmux/3.3a",
        ),
        (&[("STY", "1.pts"), ("TERM", "screen")], "screen screen"),
        (
            &[
                ("ZELLIJ", "0"),
                ("ZELLIJ_VERSION", "0.40"),
                ("TERM_PROGRAM", "ghostty"),
            ],
            "ghostty zellij/0.40",
        ),
        (&[("ZELLIJ_SESSION_NAME", "s")], "unknown zellij"),
        (&[("SSH_TTY", "/dev/pts/1"), ("TERM", "xterm")], "xterm ssh"),
        (&[("SSH_CONNECTION", "a b")], "unknown ssh"),
    ] {
        assert_eq!(terminal(variables).token(), token, "{variables:?}");
    }
}

#[test]
fn hostile_variables_yield_a_short_printable_token() {
    let long = "x".repeat(5000);
    for value in [
        "a\r\nX-Evil: 1",
        "\u{1b}]0;t\u{7}",
        "ü(ö)",
        "(",
        long.as_str(),
        "a b;c",
    ] {
        let token = terminal(&[
            ("TERM_PROGRAM", value),
            ("TERM_PROGRAM_VERSION", value),
            ("ZELLIJ_VERSION", value),
            ("SSH_TTY", value),
            ("TERM", value),
        ])
        .token();
        let plain = |c: char| c.is_ascii_alphanumeric() || " -_.+/".contains(c);
        assert!(token.chars().all(plain) && token.len() <= 200, "{token:?}");
        assert!(!token.is_empty());
    }
    let bytes = DetectedTerminal::detect(&|name| {
        use std::os::unix::ffi::OsStringExt;
        (name == "TERM").then(|| OsString::from_vec(vec![0xff]))
    });
    assert_eq!(bytes.token(), "unknown");
}

#[test]
fn remote_pty_gets_a_common_terminal_description() {
    for (variables, term, colorterm) in [
        (&[][..], "xterm-256color", None),
        (&[("TERM", "xterm")], "xterm", None),
        (&[("TERM", "xterm-256color")], "xterm-256color", None),
        (
            &[("TERM", "dumb"), ("COLORTERM", "truecolor")],
            "dumb",
            None,
        ),
        (&[("TERM", "linux")], "linux", None),
        (
            &[("TERM", "xterm-kitty")],
            "xterm-256color",
            Some("truecolor"),
        ),
        (
            &[("TERM", "xterm-ghostty")],
            "xterm-256color",
            Some("truecolor"),
        ),
        (
            &[("TERM", "alacritty")],
            "xterm-256color",
            Some("truecolor"),
        ),
        (&[("TERM", "screen-256color")], "screen-256color", None),
        (&[("TERM", "../evil")], "xterm-256color", None),
        (
            &[
                ("TERM", "tmux-256color"),
                ("TMUX", "x"),
                ("KITTY_WINDOW_ID", "1"),
            ],
            "screen-256color",
            None,
        ),
        (
            &[
                ("TERM", "tmux-256color"),
                ("TMUX", "x"),
                ("COLORTERM", "truecolor"),
            ],
            "screen-256color",
            Some("truecolor"),
        ),
        (
            &[("TERM", "xterm-256color"), ("COLORTERM", "24bit")],
            "xterm-256color",
            Some("truecolor"),
        ),
        (
            &[("TERM", "xterm-256color"), ("VTE_VERSION", "1")],
            "xterm-256color",
            Some("truecolor"),
        ),
        (
            &[("TERM", "xterm-256color"), ("COLORTERM", "\u{1b}[2J")],
            "xterm-256color",
            None,
        ),
    ] {
        let pty = terminal(variables).pty_variables();
        assert_eq!(
            (pty.term.as_str(), pty.colorterm),
            (term, colorterm),
            "{variables:?}"
        );
        let pairs: Vec<_> = pty.pairs().collect();
        assert_eq!(pairs.len(), 1 + usize::from(colorterm.is_some()));
    }
}

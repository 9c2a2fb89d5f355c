//! Hosts that the user's ssh configuration names.
//!
//! Invariant: reading is bounded and never waits, whatever the files are. Not here: `Match` and the
//! values of options, which only `ssh` interprets.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use globset::Glob;
use rustix::fs::OFlags;

use crate::command::directory_env::open_regular;

/// Maximum number of hosts.
const MAX_HOSTS: usize = 500;
/// Maximum bytes of all files together.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of files.
const MAX_FILES: usize = 64;
/// How deep `Include` may nest, as in ssh.
const MAX_DEPTH: usize = 16;

/// Returns the names in the `Host` lines of `~/.ssh/config` and of what it includes, without
/// patterns, in their order.
pub(super) fn ssh_hosts(home: &Path) -> Vec<String> {
    let mut reader = ConfigReader {
        home,
        hosts: Vec::new(),
        bytes: MAX_BYTES,
        files: MAX_FILES,
    };
    reader.read(&home.join(".ssh/config"), MAX_DEPTH);
    reader.hosts
}

struct ConfigReader<'a> {
    home: &'a Path,
    hosts: Vec<String>,
    /// Bytes that may still be read.
    bytes: u64,
    /// Files that may still be read.
    files: usize,
}

impl ConfigReader<'_> {
    /// Reads a file. One that cannot be read has no hosts.
    fn read(&mut self, path: &Path, depth: usize) {
        if self.files == 0 || depth == 0 {
            return;
        }
        self.files -= 1;
        let Ok(text) = self.text(path) else { return };
        for line in text.lines() {
            let words = words(line);
            let Some((keyword, arguments)) = words.split_first() else {
                continue;
            };
            match keyword.to_ascii_lowercase().as_str() {
                "host" => arguments.iter().for_each(|host| self.add(host)),
                "include" => {
                    for pattern in arguments {
                        for path in self.included(pattern) {
                            self.read(&path, depth - 1);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn add(&mut self, host: &str) {
        let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
        // Everything else is a pattern, or has to be quoted in a shell.
        let is_name = host.starts_with(|sign: char| sign.is_ascii_alphanumeric())
            && host.chars().all(is_plain);
        if is_name && self.hosts.len() < MAX_HOSTS && !self.hosts.iter().any(|one| one == host) {
            self.hosts.push(host.to_owned());
        }
    }

    fn text(&mut self, path: &Path) -> io::Result<String> {
        let mut content = Vec::new();
        let file = open_regular(path, OFlags::empty())?;
        let count = file.take(self.bytes).read_to_end(&mut content)?;
        self.bytes -= count as u64;
        Ok(String::from_utf8_lossy(&content).into_owned())
    }

    /// Returns the files that an `Include` names. Only the last part of a path may be a pattern.
    fn included(&self, pattern: &str) -> Vec<PathBuf> {
        let path = match pattern.strip_prefix("~/") {
            Some(below_home) => self.home.join(below_home),
            None => self.home.join(".ssh").join(pattern),
        };
        if !pattern.contains(['*', '?', '[']) {
            return vec![path];
        }
        let name = path.file_name().and_then(|name| name.to_str());
        let glob = name.and_then(|name| Glob::new(name).ok());
        let (Some(glob), Some(directory)) = (glob, path.parent()) else {
            return Vec::new();
        };
        let matcher = glob.compile_matcher();
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name());
        let is_hidden = |name: &str| name.starts_with('.');
        let mut names: Vec<_> = names
            .filter(|name| name.to_str().is_some_and(|name| !is_hidden(name)))
            .filter(|name| matcher.is_match(name))
            .take(MAX_FILES)
            .collect();
        names.sort_unstable();
        names.iter().map(|name| directory.join(name)).collect()
    }
}

/// Splits a line into a keyword and its arguments, which may be quoted.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() && !rest.starts_with('#') {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => {
                // `Host=name` is allowed.
                let is_end = |sign: char| sign.is_whitespace() || words.is_empty() && sign == '=';
                rest.split_at(rest.find(is_end).unwrap_or(rest.len()))
            }
        };
        rest = after.trim_start();
        if words.is_empty() {
            rest = rest.strip_prefix('=').unwrap_or(rest).trim_start();
        }
        words.push(word.to_owned());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(files: &[(&str, &str)]) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = home.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        home
    }

    #[test]
    fn hosts_are_listed_without_patterns() {
        let config = "# Host comment\nHost box  build.example\n  HostName 10.0.0.1\n\
                      host=one\nHOST = \"two\" # Host three\nHost *.internal !bad web? -x a$(b)\n\
                      Match host other\nHost box\n";
        let home = home(&[(".ssh/config", config)]);
        assert_eq!(
            ssh_hosts(home.path()),
            ["box", "build.example", "one", "two"]
        );
    }

    #[test]
    fn included_files_are_read() {
        let home = home(&[
            (
                ".ssh/config",
                "Include config.d/*.conf ~/work/hosts missing\nInclude config\nHost last\n",
            ),
            (".ssh/config.d/b.conf", "Host b\n"),
            (".ssh/config.d/a.conf", "Host a\n"),
            (".ssh/config.d/.hidden.conf", "Host hidden\n"),
            (".ssh/config.d/readme", "Host readme\n"),
            ("work/hosts", "Host work\n"),
        ]);
        assert_eq!(ssh_hosts(home.path()), ["a", "b", "work", "last"]);
    }

    #[test]
    fn number_of_hosts_and_bytes_is_bounded() {
        let many: String = (0..2000).map(|host| format!("Host h{host}\n")).collect();
        let many = home(&[(".ssh/config", &many)]);
        assert_eq!(ssh_hosts(many.path()).len(), MAX_HOSTS);
        let long = "#".repeat(usize::try_from(MAX_BYTES).unwrap());
        let long = home(&[(".ssh/config", &format!("Host a\n{long}\nHost b\n"))]);
        assert_eq!(ssh_hosts(long.path()), ["a"]);
    }

    #[test]
    fn file_that_would_block_has_no_hosts() {
        let home = home(&[("x", "")]);
        fs::create_dir(home.path().join(".ssh")).unwrap();
        let fifo = home.path().join(".ssh/config");
        rustix::fs::mkfifoat(rustix::fs::CWD, fifo, rustix::fs::Mode::from(0o600)).unwrap();
        assert_eq!(ssh_hosts(home.path()), [] as [&str; 0]);
    }
}

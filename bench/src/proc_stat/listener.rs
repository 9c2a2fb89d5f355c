//! Finds the owner of a listening port: `/proc/net/tcp` gives the socket, `/proc/PID/fd` its owner.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::process::{self, Stat};

/// Returns the process that listens on `port` of this machine, if we may see it.
///
/// Of several that share the socket it is the one whose parent does not.
pub(crate) fn owner(port: u16) -> Option<u32> {
    let mut inodes = BTreeSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        inodes.extend(listening(
            &fs::read_to_string(table).unwrap_or_default(),
            port,
        ));
    }
    let links: BTreeSet<String> = inodes
        .iter()
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    let owners: BTreeSet<u32> = process::all().filter(|&pid| holds(pid, &links)).collect();
    owners
        .iter()
        .copied()
        .find(|&pid| Stat::read(pid).is_some_and(|s| !owners.contains(&s.parent)))
}

/// Returns the port of a `ws://HOST:PORT` address.
pub(crate) fn port(url: &str) -> Option<u16> {
    let authority = url.strip_prefix("ws://")?.split('/').next()?;
    authority.rsplit_once(':')?.1.parse().ok()
}

/// Returns the inodes of the sockets that listen on `port`.
fn listening(table: &str, port: u16) -> Vec<u64> {
    let suffix = format!(":{port:04X}");
    let lines = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (local, state) = (fields.get(1)?, *fields.get(3)?);
        // 0A is TCP_LISTEN.
        (local.ends_with(&suffix) && state == "0A").then_some(())?;
        fields.get(9)?.parse().ok()
    });
    lines.collect()
}

fn holds(pid: u32, links: &BTreeSet<String>) -> bool {
    let fds = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd"));
    fds.into_iter().flatten().flatten().any(|fd| {
        fs::read_link(fd.path())
            .is_ok_and(|link| link.to_str().is_some_and(|link| links.contains(link)))
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_listening_sockets_of_the_port_are_found() {
        let table = "  sl  local rem st\n\
            0: 0100007F:1F90 00000000:0000 0A 0:0 00:0 0 0 0 111 1\n\
            1: 0100007F:1F90 0100007F:AAAA 01 0:0 00:0 0 0 0 222 1\n\
            2: 0100007F:1F91 00000000:0000 0A 0:0 00:0 0 0 0 333 1\n";
        assert_eq!(listening(table, 8080), [111]);
    }

    #[test]
    fn owner_of_our_socket_is_this_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(owner(port), Some(std::process::id()));
    }

    #[test]
    fn port_is_parsed_from_the_address() {
        assert_eq!(port("ws://127.0.0.1:46755"), Some(46755));
        assert_eq!(port("ws://[::1]:80/x"), Some(80));
        assert_eq!(port("ws://host"), None);
    }
}

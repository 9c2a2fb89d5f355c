//! Messages to the service manager that started this process, such as systemd (`Type=notify`), and
//! its watchdog.

use std::{io, os::unix::ffi::OsStrExt, time::Duration};

use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with,
};
use tokio::time::{MissedTickBehavior, interval};

/// Sends a state such as `READY=1`, if a service manager listens.
pub(crate) fn notify(state: &str) {
    if let Err(error) = try_notify(state) {
        tracing::debug!(%error, state, "failed to notify the service manager");
    }
}

fn try_notify(state: &str) -> io::Result<()> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let address = match path.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddrUnix::new_abstract_name(name)?,
        _ => SocketAddrUnix::new(path.as_bytes())?,
    };
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    sendto(&socket, state.as_bytes(), SendFlags::NOSIGNAL, &address)?;
    Ok(())
}

/// Reports to the watchdog regularly that the runtime is alive. Returns at once without a watchdog.
pub(crate) async fn feed_watchdog() {
    let Some(period) = watchdog_period(&|name| std::env::var(name).ok()) else {
        return;
    };
    let mut ticks = interval(period / 2);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        notify("WATCHDOG=1");
    }
}

/// Returns how often the watchdog expects a message. A process that takes over has another pid than
/// the one that the variable names, and is watched, too.
fn watchdog_period(lookup: &dyn Fn(&str) -> Option<String>) -> Option<Duration> {
    let micros: u64 = lookup("WATCHDOG_USEC")?.parse().ok()?;
    (micros > 0).then(|| Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_period_is_read_in_microseconds() {
        let period = |text: &str| watchdog_period(&|_| Some(text.to_owned()));
        assert_eq!(period("30000000"), Some(Duration::from_secs(30)));
        assert_eq!(period("0"), None);
        assert_eq!(period("soon"), None);
        assert_eq!(watchdog_period(&|_| None), None);
    }
}

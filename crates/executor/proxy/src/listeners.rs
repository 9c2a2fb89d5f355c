//! The sockets a proxy serves.

use std::{
    io,
    net::{Ipv4Addr, TcpListener, UdpSocket},
};

use crate::settings::Checked;

/// Sockets that are bound, and listen where they can. They may be in another network namespace
/// than the server; a [`OwnedFd`](std::os::fd::OwnedFd) converts into each of them.
#[derive(Debug)]
pub struct Listeners {
    /// For HTTP.
    pub http: TcpListener,
    /// For SOCKS5. Absent: it is not spoken.
    pub socks: Option<TcpListener>,
    /// For datagrams over SOCKS5; where the one of `socks` is. Absent: they are refused.
    pub datagrams: Option<UdpSocket>,
}

impl Listeners {
    /// Binds what `settings` ask for on the loopback of this namespace, at ports that are free.
    pub fn on_loopback(settings: &Checked) -> io::Result<Self> {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let datagrams = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        Ok(Self {
            http: bind()?,
            socks: settings.speaks_socks().then(bind).transpose()?,
            datagrams: settings.relays_datagrams().then(datagrams).transpose()?,
        })
    }

    /// Returns the port for HTTP.
    pub fn http_port(&self) -> io::Result<u16> {
        Ok(self.http.local_addr()?.port())
    }

    /// Returns the port for SOCKS5, if it is spoken.
    pub fn socks_port(&self) -> io::Result<Option<u16>> {
        let address = self.socks.as_ref().map(TcpListener::local_addr);
        Ok(address.transpose()?.map(|address| address.port()))
    }
}

//! Validation of the `Host` of a request, against DNS rebinding: a web page whose name was made to
//! resolve to this machine sends that name, and a simple `GET` carries no `Origin`.

use std::{fmt, net::IpAddr, path::Path, str::FromStr, sync::Arc};

use http::{HeaderValue, uri::Authority};
use tokio_rustls::rustls::{
    client::verify_server_name,
    pki_types::{CertificateDer, ServerName},
    server::ParsedCertificate,
};

use crate::tls::{TlsError, leaf_certificate};

/// Configured DNS names of a listener, separated by commas.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HostNames(Vec<String>);

impl HostNames {
    /// Returns the names, in lower case.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl FromStr for HostNames {
    type Err = HostNamesParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = text.split(',').map(|name| {
            let name = name.trim();
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            match !name.is_empty() && name.len() <= 253 && name.chars().all(is_name) {
                true => Ok(canonical(name)),
                false => Err(HostNamesParseError(name.escape_debug().to_string())),
            }
        });
        names.collect::<Result<_, _>>().map(Self)
    }
}

/// Caller: the text is not a list of host names.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid host name `{0}`; expected names such as box.example.org, without scheme and port")]
pub struct HostNamesParseError(String);

/// Hosts that a listener accepts: every IP address, `localhost`, the machine's name, the names of
/// its certificate, and the configured names.
#[derive(Clone, Default)]
pub struct AllowedHosts {
    names: Arc<Vec<String>>,
    certificate: Option<Arc<CertificateDer<'static>>>,
    any: bool,
}

impl fmt::Debug for AllowedHosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllowedHosts")
            .field("names", &self.names)
            .field("any", &self.any)
            .finish_non_exhaustive()
    }
}

impl AllowedHosts {
    /// Allows these names in addition to the built-in ones.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let machine = rustix::system::uname();
        let machine = machine.nodename().to_str().unwrap_or_default().to_owned();
        let mut all = vec!["localhost".to_owned(), canonical(&machine)];
        all.extend(names.into_iter().map(canonical));
        all.retain(|name| !name.is_empty());
        Self {
            names: Arc::new(all),
            certificate: None,
            any: false,
        }
    }

    /// Allows every host, for sockets that DNS cannot name.
    pub fn any() -> Self {
        Self {
            any: true,
            ..Self::default()
        }
    }

    /// Allows the names of a certificate as well: the first one of a PEM file.
    ///
    /// # Errors
    /// Fails if the file cannot be read or contains no certificate.
    pub fn with_certificate(self, path: &Path) -> Result<Self, TlsError> {
        let certificate = Some(Arc::new(leaf_certificate(path)?));
        Ok(Self {
            certificate,
            ..self
        })
    }

    /// Returns whether the value of a `Host` header is allowed; `None` if it is malformed.
    pub(super) fn allow(&self, value: &HeaderValue) -> Option<bool> {
        let authority = Authority::try_from(value.as_bytes()).ok()?;
        self.allow_authority(&authority)
    }

    /// Returns the same for the authority of a request target.
    pub(super) fn allow_authority(&self, authority: &Authority) -> Option<bool> {
        let host = authority.host();
        if host.is_empty() || authority.as_str().contains('@') {
            return None;
        }
        let address = host.trim_start_matches('[').trim_end_matches(']');
        if self.any || address.parse::<IpAddr>().is_ok() {
            return Some(true);
        }
        let name = canonical(host);
        Some(self.names.contains(&name) || self.is_certified(&name))
    }

    fn is_certified(&self, name: &str) -> bool {
        let Some(certificate) = &self.certificate else {
            return false;
        };
        let (Ok(name), Ok(certificate)) = (
            ServerName::try_from(name),
            ParsedCertificate::try_from(&**certificate),
        ) else {
            return false;
        };
        verify_server_name(&certificate, &name).is_ok()
    }
}

/// Normalises a name: lower case, without the trailing dot.
fn canonical(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(hosts: &AllowedHosts, host: &str) -> Option<bool> {
        hosts.allow(&HeaderValue::from_str(host).unwrap())
    }

    #[test]
    fn addresses_and_configured_names_are_allowed() {
        let names: HostNames = "box.example, Other".parse().unwrap();
        let hosts = AllowedHosts::new(names.iter());
        let machine = rustix::system::uname();
        let machine = machine.nodename().to_str().unwrap();
        for host in [
            "127.0.0.1",
            "127.0.0.1:80",
            "[::1]:8080",
            "192.0.2.7:1",
            "localhost",
            "LocalHost.:9",
            "BOX.example:443",
            "other",
            machine,
        ] {
            assert_eq!(allowed(&hosts, host), Some(true), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "x.box.example",
        ] {
            assert_eq!(allowed(&hosts, host), Some(false), "{host}");
            assert_eq!(allowed(&AllowedHosts::any(), host), Some(true), "{host}");
        }
        for host in ["", "a b", "user@localhost", "/", "a/b", ":80"] {
            assert_eq!(allowed(&hosts, host), None, "{host:?}");
        }
    }

    #[test]
    fn names_of_the_certificate_are_allowed() {
        let names = vec!["box.example".to_owned(), "*.lab.example".to_owned()];
        let certified = rcgen::generate_simple_self_signed(names).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cert.pem");
        std::fs::write(&path, certified.cert.pem()).unwrap();
        let hosts = AllowedHosts::new([]).with_certificate(&path).unwrap();
        assert_eq!(allowed(&hosts, "box.example:443"), Some(true));
        assert_eq!(allowed(&hosts, "a.lab.example"), Some(true));
        assert_eq!(allowed(&hosts, "evil.example"), Some(false));
    }

    #[test]
    fn host_names_with_scheme_port_or_wildcard_are_rejected() {
        for text in ["", "a,,b", "http://a", "a:80", "[::1]", "a b", "*.a"] {
            assert!(text.parse::<HostNames>().is_err(), "{text:?}");
        }
    }
}

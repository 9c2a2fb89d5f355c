//! Command line syntax of tunnels.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
};

use exec_wire::tunnel::TunnelHost;

/// What to forward to this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TunnelArg {
    /// Every port that a process opens.
    Auto,
    /// One port.
    Port(TunnelSpec),
}

impl FromStr for TunnelArg {
    type Err = TunnelSpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            text => text.parse().map(Self::Port),
        }
    }
}

/// A port that listens at one end, and the host and port that the other end connects to.
///
/// Text form: `[[BIND:]LISTEN:][HOST:]PORT`, with IPv6 addresses in brackets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TunnelSpec {
    /// Address to listen on. Absent: the default.
    pub bind: Option<IpAddr>,
    /// Port to listen on; 0 lets the system choose. Absent: `port`.
    pub listen_port: Option<u16>,
    /// Host to connect to. Absent: the loopback of the other end.
    pub host: Option<TunnelHost>,
    /// Port to connect to.
    pub port: u16,
}

impl TunnelSpec {
    /// Forwards a loopback port under the same number.
    pub(crate) fn loopback(port: u16) -> Self {
        Self {
            bind: None,
            listen_port: None,
            host: None,
            port,
        }
    }

    /// Returns the address to listen on, and 127.0.0.1 or `default` as its host.
    pub(crate) fn listen_address(&self, default: Option<IpAddr>) -> SocketAddr {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let host = self.bind.or(default).unwrap_or(loopback);
        SocketAddr::new(host, self.listen_port.unwrap_or(self.port))
    }

    /// Returns the name of the host to connect to.
    pub(crate) fn host_name(&self) -> &str {
        self.host.as_ref().map_or("localhost", TunnelHost::as_str)
    }

    /// Returns host and port to connect to, as a URL contains them.
    pub(crate) fn authority(&self) -> String {
        match self.host_name() {
            host if host.contains(':') => format!("[{host}]:{}", self.port),
            host => format!("{host}:{}", self.port),
        }
    }
}

impl FromStr for TunnelSpec {
    type Err = TunnelSpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |problem| TunnelSpecError { problem };
        let fields = fields(text).map_err(wrong)?;
        let (bind, listen, host, port) = match *fields {
            [port] => (None, None, None, port),
            [listen, port] if is_number(listen) => (None, Some(listen), None, port),
            [host, port] => (None, None, Some(host), port),
            [listen, host, port] if is_number(listen) => (None, Some(listen), Some(host), port),
            [bind, listen, port] => (Some(bind), Some(listen), None, port),
            [bind, listen, host, port] => (Some(bind), Some(listen), Some(host), port),
            _ => return Err(wrong(SpecProblem::Fields)),
        };
        let number = |text: &str| {
            let number = text.parse::<u16>();
            number.map_err(|_| wrong(SpecProblem::Port(text.to_owned())))
        };
        let port = match number(port)? {
            0 => return Err(wrong(SpecProblem::ZeroPort)),
            port => port,
        };
        Ok(Self {
            bind: bind.map(parse_bind).transpose().map_err(wrong)?,
            listen_port: listen.map(number).transpose()?,
            host: host
                .map(TunnelHost::new)
                .transpose()
                .map_err(|_| wrong(SpecProblem::Host))?,
            port,
        })
    }
}

impl fmt::Display for TunnelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.bind, self.listen_port) {
            (Some(IpAddr::V6(bind)), _) => write!(f, "[{bind}]:")?,
            (Some(IpAddr::V4(bind)), _) => write!(f, "{bind}:")?,
            (None, _) => {}
        }
        if let Some(port) = self.listen_port {
            write!(f, "{port}:")?;
        }
        match self.host {
            Some(_) => f.write_str(&self.authority()),
            None => write!(f, "{}", self.port),
        }
    }
}

/// Splits at colons outside of brackets.
fn fields(text: &str) -> Result<Vec<&str>, SpecProblem> {
    let (mut fields, mut rest) = (Vec::new(), text);
    loop {
        let (field, after) = match rest.strip_prefix('[') {
            Some(bracketed) => bracketed.split_once(']').ok_or(SpecProblem::Bracket)?,
            None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
        };
        fields.push(field);
        if after.is_empty() {
            return Ok(fields);
        }
        rest = after.strip_prefix(':').ok_or(SpecProblem::Bracket)?;
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit())
}

/// Parses an address to listen on.
fn parse_bind(text: &str) -> Result<IpAddr, SpecProblem> {
    match text {
        "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        text => {
            let address = text.parse();
            address.map_err(|_| SpecProblem::Bind(text.to_owned()))
        }
    }
}

/// Caller: a text is not a tunnel.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{problem}; expected PORT, LOCAL:PORT, HOST:PORT, LOCAL:HOST:PORT or BIND:LOCAL:HOST:PORT")]
pub struct TunnelSpecError {
    problem: SpecProblem,
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
enum SpecProblem {
    #[error("too many fields (IPv6 addresses need brackets, as in 8080:[::1]:3000)")]
    Fields,
    #[error("`{0}` is not a port from 1 to 65535")]
    Port(String),
    #[error("port 0 can only be listened on")]
    ZeroPort,
    #[error("the host must be a name or an address without spaces")]
    Host,
    #[error("`{0}` is not an address of this machine to listen on")]
    Bind(String),
    #[error("unbalanced brackets")]
    Bracket,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> TunnelSpec {
        text.parse().unwrap()
    }

    #[test]
    fn fields_are_assigned_as_ssh_users_expect() {
        let parsed = |text: &str| {
            let spec = spec(text);
            let bind = spec.bind.map(|bind| bind.to_string());
            let host = spec.host.as_ref().map(|host| host.as_str().to_owned());
            (bind, spec.listen_port, host, spec.port)
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(parsed("3000"), (None, None, None, 3000));
        assert_eq!(parsed("8080:3000"), (None, Some(8080), None, 3000));
        assert_eq!(parsed("0:3000"), (None, Some(0), None, 3000));
        assert_eq!(
            parsed("8080:db.internal:5432"),
            (None, Some(8080), text("db.internal"), 5432)
        );
        assert_eq!(parsed("db:5432"), (None, None, text("db"), 5432));
        assert_eq!(parsed("[::1]:80"), (None, None, text("::1"), 80));
        assert_eq!(
            parsed("[::1]:8080:host:80"),
            (text("::1"), Some(8080), text("host"), 80)
        );
        assert_eq!(
            parsed("0.0.0.0:8080:[fe80::2]:80"),
            (text("0.0.0.0"), Some(8080), text("fe80::2"), 80)
        );
        assert_eq!(
            parsed("localhost:8080:80"),
            (text("127.0.0.1"), Some(8080), None, 80)
        );
    }

    #[test]
    fn text_form_is_parsed_again() {
        for text in ["3000", "0:3000", "8080:db:5432", "[::1]:8080:[::2]:80"] {
            assert_eq!(spec(text).to_string(), text);
        }
    }

    #[test]
    fn listens_on_loopback_under_the_same_number_by_default() {
        let address =
            |text: &str, default: Option<IpAddr>| spec(text).listen_address(default).to_string();
        let every = Some("0.0.0.0".parse().unwrap());
        assert_eq!(address("3000", None), "127.0.0.1:3000");
        assert_eq!(address("3000", every), "0.0.0.0:3000");
        assert_eq!(address("[::1]:8080:80", every), "[::1]:8080");
        assert_eq!(spec("8080:[::1]:80").authority(), "[::1]:80");
        assert_eq!(spec("80").authority(), "localhost:80");
    }

    #[test]
    fn wrong_specs_are_explained() {
        for (text, says) in [
            ("", "`` is not a port"),
            ("x", "`x` is not a port"),
            ("0", "port 0"),
            ("70000", "`70000`"),
            ("8080:0", "port 0"),
            ("8080:host:", "`` is not a port"),
            ("8080::80", "host must be"),
            ("8080:a b:80", "host must be"),
            ("a:8080:80:", "`` is not a port"),
            ("a:8080:80", "`a` is not an address"),
            ("::1:8080:host:80", "brackets"),
            ("[::1:80", "brackets"),
            ("[::1]80", "brackets"),
        ] {
            let error = text.parse::<TunnelSpec>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        assert_eq!("auto".parse(), Ok(TunnelArg::Auto));
    }
}

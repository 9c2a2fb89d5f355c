//! Environment variables that point programs to a proxy.
//!
//! Programs may ignore them, but nothing else is reachable in a sandbox.

use std::collections::BTreeSet;

/// Returns the variables that point a program to a proxy on the loopback of its namespace.
/// Without a SOCKS port, all variables name the HTTP port.
pub fn proxy_variables(
    http_port: u16,
    socks_port: Option<u16>,
    allow_local_binding: bool,
) -> Vec<(String, String)> {
    let http = format!("http://127.0.0.1:{http_port}");
    let other = match socks_port {
        Some(port) => format!("socks5h://127.0.0.1:{port}"),
        None => http.clone(),
    };
    let (exempt, local_binding) = if allow_local_binding {
        ("localhost,127.0.0.1,::1", "1")
    } else {
        ("", "0")
    };
    let groups: [(&[&str], &str); 4] = [
        (&HTTP_VARIABLES, &http),
        (&OTHER_VARIABLES, &other),
        (&NO_PROXY_VARIABLES, exempt),
        (&["CODEX_NETWORK_ALLOW_LOCAL_BINDING"], local_binding),
    ];
    let assigned = groups
        .into_iter()
        .flat_map(|(names, value)| names.iter().map(move |name| (*name, value)));
    assigned
        .chain(FIXED_VARIABLES)
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Returns the 127.0.0.1 ports that the proxy variables of an environment name, in ascending order.
/// Empty if no program would find a proxy there.
pub fn proxy_ports<K: AsRef<str>, V: AsRef<str>>(
    environment: impl IntoIterator<Item = (K, V)>,
) -> Vec<u16> {
    let ports: BTreeSet<u16> = environment
        .into_iter()
        .filter(|(name, _)| {
            HTTP_VARIABLES.contains(&name.as_ref()) || OTHER_VARIABLES.contains(&name.as_ref())
        })
        .filter_map(|(_, value)| loopback_port(value.as_ref()))
        .collect();
    ports.into_iter().collect()
}

/// Parses `[scheme://][user@]host[:port][/path]`. The default scheme is HTTP.
fn loopback_port(value: &str) -> Option<u16> {
    let (scheme, rest) = value
        .trim()
        .split_once("://")
        .unwrap_or(("http", value.trim()));
    let authority = rest.split(['/', '?', '#']).next()?;
    let (_, host_and_port) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (host, port) = match host_and_port.split_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (host_and_port, default_port(scheme)?),
    };
    // A program may resolve `localhost` to ::1, but then it tries 127.0.0.1 next.
    let loopback = host == "127.0.0.1" || host.eq_ignore_ascii_case("localhost");
    (loopback && port != 0).then_some(port)
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme.to_ascii_lowercase().as_str() {
        "http" => Some(80),
        "https" => Some(443),
        "socks" | "socks4" | "socks4a" | "socks5" | "socks5h" => Some(1080),
        _ => None,
    }
}

/// Variables that name a proxy for HTTP, TLS and websockets.
const HTTP_VARIABLES: [&str; 21] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "WS_PROXY",
    "WSS_PROXY",
    "http_proxy",
    "https_proxy",
    "ws_proxy",
    "wss_proxy",
    "YARN_HTTP_PROXY",
    "YARN_HTTPS_PROXY",
    "npm_config_http_proxy",
    "npm_config_https_proxy",
    "npm_config_proxy",
    "NPM_CONFIG_HTTP_PROXY",
    "NPM_CONFIG_HTTPS_PROXY",
    "NPM_CONFIG_PROXY",
    "BUNDLE_HTTP_PROXY",
    "BUNDLE_HTTPS_PROXY",
    "PIP_PROXY",
    "DOCKER_HTTP_PROXY",
    "DOCKER_HTTPS_PROXY",
];

/// Variables that name a proxy for other protocols.
const OTHER_VARIABLES: [&str; 4] = ["ALL_PROXY", "all_proxy", "FTP_PROXY", "ftp_proxy"];

/// Variables that name hosts to connect to without a proxy.
const NO_PROXY_VARIABLES: [&str; 6] = [
    "NO_PROXY",
    "no_proxy",
    "npm_config_noproxy",
    "NPM_CONFIG_NOPROXY",
    "YARN_NO_PROXY",
    "BUNDLE_NO_PROXY",
];

/// Variables that make programs use a proxy at all.
const FIXED_VARIABLES: [(&str, &str); 3] = [
    ("CODEX_NETWORK_PROXY_ACTIVE", "1"),
    ("ELECTRON_GET_USE_PROXY", "true"),
    ("NODE_USE_ENV_PROXY", "1"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn map(socks: Option<u16>, local: bool) -> BTreeMap<String, String> {
        let variables = proxy_variables(3128, socks, local);
        let count = variables.len();
        let map: BTreeMap<_, _> = variables.into_iter().collect();
        assert_eq!(map.len(), count, "variable is set twice");
        map
    }

    #[test]
    fn variables_point_to_the_proxy_ports() {
        let map = map(Some(1080), false);
        assert_eq!(map.len(), 35);
        for name in [
            "HTTP_PROXY",
            "wss_proxy",
            "NPM_CONFIG_HTTPS_PROXY",
            "PIP_PROXY",
        ] {
            assert_eq!(map[name], "http://127.0.0.1:3128", "{name}");
        }
        for name in OTHER_VARIABLES {
            assert_eq!(map[name], "socks5h://127.0.0.1:1080", "{name}");
        }
        for name in NO_PROXY_VARIABLES {
            assert_eq!(map[name], "", "{name}");
        }
        assert_eq!(map["CODEX_NETWORK_PROXY_ACTIVE"], "1");
        assert_eq!(map["CODEX_NETWORK_ALLOW_LOCAL_BINDING"], "0");
        assert_eq!(map["ELECTRON_GET_USE_PROXY"], "true");
        assert_eq!(map["NODE_USE_ENV_PROXY"], "1");
    }

    #[test]
    fn without_socks_everything_goes_to_the_http_port() {
        assert_eq!(map(None, false)["ALL_PROXY"], "http://127.0.0.1:3128");
    }

    #[test]
    fn local_binding_exempts_the_loopback() {
        let map = map(None, true);
        assert_eq!(map["no_proxy"], "localhost,127.0.0.1,::1");
        assert_eq!(map["CODEX_NETWORK_ALLOW_LOCAL_BINDING"], "1");
    }

    #[test]
    fn ports_are_found_in_our_own_variables() {
        assert_eq!(
            proxy_ports(proxy_variables(3128, Some(1080), true)),
            [1080, 3128]
        );
    }

    #[test]
    fn only_loopback_proxies_yield_ports() {
        for (value, expected) in [
            ("http://127.0.0.1:8080", Some(8080)),
            ("http://127.0.0.1:8080/", Some(8080)),
            ("127.0.0.1:8080", Some(8080)),
            ("http://user:pass@localhost:9", Some(9)),
            ("socks5h://LOCALHOST", Some(1080)),
            ("https://127.0.0.1", Some(443)),
            ("http://127.0.0.1:0", None),
            ("http://127.0.0.1:99999", None),
            ("http://127.0.0.1:80x", None),
            ("http://proxy.example:3128", None),
            ("http://127.0.0.1@evil.example:80", None),
            ("http://[::1]:80", None),
            ("ftp://127.0.0.1", None),
            ("", None),
        ] {
            let ports = proxy_ports([("HTTPS_PROXY", value)]);
            assert_eq!(ports, Vec::from_iter(expected), "{value}");
        }
        assert!(proxy_ports([("NO_PROXY", "127.0.0.1:1"), ("OTHER", "127.0.0.1:2")]).is_empty());
    }
}

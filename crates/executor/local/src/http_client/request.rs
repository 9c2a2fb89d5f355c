//! What may be asked for: every request is checked before anything is sent.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
};

use bytes::Bytes;
use exec_env::{
    credential::CredentialVariable,
    http::{HttpError, HttpRequest},
};
use exec_wire::http::{HttpHeader, RedirectPolicy};
use reqwest::{
    Method, RequestBuilder, Url,
    header::{AUTHORIZATION, CONTENT_LENGTH, COOKIE, HeaderMap, HeaderName, HeaderValue},
};

use super::pool::{Pool, Redirections};

/// A request that can be made.
#[derive(Debug)]
pub(crate) struct Checked {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Option<Bytes>,
    redirections: Redirections,
}

impl Checked {
    /// Makes it a request of a client's, which turns a name and a password in the URL into a header.
    pub(crate) fn with(self, pool: &Pool) -> RequestBuilder {
        let client = pool.client(self.redirections);
        let request = client.request(self.method, self.url);
        let request = request.headers(self.headers);
        match self.body {
            Some(body) => request.body(body),
            None => request,
        }
    }
}

/// Checks a request and puts the host's variables into its headers.
pub(crate) fn check(
    asked: HttpRequest,
    env: &BTreeMap<OsString, OsString>,
) -> Result<Checked, HttpError> {
    let method = Method::from_bytes(asked.method.as_bytes())
        .map_err(|error| refused(format!("http/request method is invalid: {error}")))?;
    let url = Url::parse(&asked.url)
        .map_err(|error| refused(format!("http/request url is invalid: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        let text = format!(
            "http/request only supports http and https URLs, got {}",
            url.scheme()
        );
        return Err(refused(text));
    }
    let mut headers = HeaderMap::with_capacity(asked.headers.len());
    for header in &asked.headers {
        let name = HeaderName::from_bytes(header.name.as_bytes())
            .map_err(|error| refused(format!("http/request header name is invalid: {error}")))?;
        let value = value(header, env)?;
        let appended = headers.try_append(name, value);
        appended.map_err(|_| refused("there are too many headers".to_owned()))?;
    }
    // The library takes these two from a request that goes to another host, but no other.
    let secret = |(name, value): (&HeaderName, &HeaderValue)| {
        value.is_sensitive() && *name != AUTHORIZATION && *name != COOKIE
    };
    let redirections = match asked.redirects {
        RedirectPolicy::Stop => Redirections::Stop,
        RedirectPolicy::Follow if headers.iter().any(secret) => Redirections::Stay,
        RedirectPolicy::Follow => Redirections::Follow,
    };
    let body = asked.body.unwrap_or_default();
    // Another length would have the host wait for what never comes.
    let length = body.len().to_string();
    if headers
        .get_all(CONTENT_LENGTH)
        .iter()
        .any(|told| told != length.as_str())
    {
        let text = format!("header content-length must be that of the body, {length}");
        return Err(refused(text));
    }
    let body = (!body.is_empty()).then_some(body);
    Ok(Checked {
        method,
        url,
        headers,
        body,
        redirections,
    })
}

/// Makes a header's value: its text, and the host's variable behind it.
fn value(
    header: &HttpHeader,
    env: &BTreeMap<OsString, OsString>,
) -> Result<HeaderValue, HttpError> {
    let (name, text) = (&header.name, &header.value);
    let invalid = |error| {
        refused(format!(
            "http/request header value is invalid for {name}: {error}"
        ))
    };
    let Some(variable) = &header.value_env_var else {
        return HeaderValue::from_bytes(text.as_bytes()).map_err(invalid);
    };
    // Credentials of the server and of clouds, as the stock server; and those that it does not know.
    if CredentialVariable::find(OsStr::new(variable)).is_some() {
        let text = format!(
            "http/request header {name} cannot use executor environment variable {variable}"
        );
        return Err(refused(text));
    }
    let found = env.get(OsStr::new(variable)).map(|value| value.as_bytes());
    let secret = match found {
        None => Err(format!(
            "http/request header {name} requires executor environment variable {variable}"
        )),
        Some([]) => Err(format!(
            "http/request header {name} requires a non-empty executor environment variable {variable}"
        )),
        Some(value) => Ok(value),
    }
    .map_err(refused)?;
    let joined = [text.as_bytes(), secret].concat();
    let mut value = HeaderValue::from_bytes(&joined).map_err(invalid)?;
    // Not shown, and not kept in the tables of HTTP/2.
    value.set_sensitive(true);
    Ok(value)
}

fn refused(text: String) -> HttpError {
    HttpError::Refused(text)
}

//! `exec-server hub environments`.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use exec_cli::command::TextTable;
use exec_env::credential::CredentialVariable;
use exec_hub::{
    admin::{EnvironmentList, ExecutorTransport, HubEnvironmentStatus},
    store::EnvironmentId,
};
use exec_registry::http::BaseUrl;
use exec_settings::settings_source;
use exec_transport::tls::TrustStore;
use http::StatusCode;
use reqwest::{Client, Response, redirect::Policy};
use serde_json::Value;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};

use crate::{
    cli::HubEnvironments,
    command::{CommandFailure, FailureKind},
    config::VariableLookup,
    remote::OutboundNetwork,
};

/// Request timeout.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum response size: some hundred bytes per environment of a page.
const MAX_RESPONSE_BYTES: usize = 4 << 20;
/// Maximum number of environments.
const MAX_ENVIRONMENTS: usize = 1_000_000;
/// Variable with the token.
const TOKEN: &str = CredentialVariable::HubToken.name();

/// Lists the environments of a hub that the token may see, as a table or JSON.
///
/// # Errors
/// When the token is missing, it would be sent unencrypted, or the hub's response is invalid.
pub async fn list_environments(
    flags: &HubEnvironments,
    lookup: VariableLookup<'_>,
) -> anyhow::Result<String> {
    let url = &flags.url;
    ensure!(
        url.is_private(),
        "refusing to send a token to `{url}`: use https://, or a hub on this machine"
    );
    let token = token(flags, lookup)?;
    let network = OutboundNetwork::find(lookup, url)?;
    let client = client(url, &network.trust).await?;
    let mut environments = Vec::new();
    let mut page = request_page(&client, url, &token, None).await?;
    loop {
        environments.append(&mut page.environments);
        let Some(after) = page.next.take() else { break };
        let after = after.parse().context("invalid response from the hub")?;
        ensure!(
            environments.len() < MAX_ENVIRONMENTS,
            "the list does not end"
        );
        page = request_page(&client, url, &token, Some(&after)).await?;
    }
    if flags.json {
        return Ok(format!(
            "{}\n",
            serde_json::to_string_pretty(&environments)?
        ));
    }
    Ok(table(environments).to_string())
}

/// Reads the token from the file of the flag, else from the variable.
fn token(flags: &HubEnvironments, lookup: VariableLookup<'_>) -> anyhow::Result<String> {
    let (text, source) = match &flags.token_file {
        Some(path) => {
            let source = format!("`{}`", path.display());
            let text = settings_source::read_text(path)
                .with_context(|| format!("cannot read {source}"))?;
            (text, source)
        }
        None => {
            let source = format!("environment variable {TOKEN}");
            let text = lookup(TOKEN).unwrap_or_default().into_string().ok();
            (
                text.with_context(|| format!("{source}: expected text"))?,
                source,
            )
        }
    };
    let token = text.trim();
    if token.is_empty() {
        let what = format!("no token for the hub: {source} is empty or not set");
        let failure = CommandFailure::new(FailureKind::NotAllowed, what);
        return Err(failure.next("give --token-file FILE").into());
    }
    Ok(token.to_owned())
}

/// Requests one page.
async fn request_page(
    client: &Client,
    url: &BaseUrl,
    token: &str,
    after: Option<&EnvironmentId>,
) -> anyhow::Result<EnvironmentList> {
    let query = match after {
        Some(after) => format!("?after={after}"),
        None => String::new(),
    };
    let response = client
        .get(format!("{url}/hub/v1/environments{query}"))
        .bearer_auth(token)
        .send()
        .await
        .map_err(reqwest::Error::without_url)
        .with_context(|| format!("cannot reach `{url}`"))?;
    let status = response.status();
    let body = body(response).await?;
    if !status.is_success() {
        let what = match message(&body) {
            Some(message) => format!("hub refused: {status}: {}", message.escape_debug()),
            None => format!("hub refused: {status}"),
        };
        let kind = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => FailureKind::NotAllowed,
            _ => FailureKind::Failed,
        };
        return Err(CommandFailure::new(kind, what).into());
    }
    serde_json::from_slice(&body).context("invalid response from the hub")
}

/// Returns the message of an error response.
fn message(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    Some(body["error"]["message"].as_str()?.to_owned())
}

fn table(environments: Vec<HubEnvironmentStatus>) -> TextTable {
    let mut table = TextTable::new(&["ID", "OWNER", "STATE", "TRANSPORT", "NODE", "REGISTERED"]);
    for environment in environments {
        let state = if environment.online {
            "online"
        } else {
            "offline"
        };
        let transport = match environment.transport {
            ExecutorTransport::Noise => "noise",
            ExecutorTransport::Direct => "direct",
        };
        table.push([
            environment.environment_id,
            environment.owner,
            state.to_owned(),
            transport.to_owned(),
            environment.node.unwrap_or_default(),
            environment.registered_at.unwrap_or_default(),
        ]);
    }
    table
}

async fn client(url: &BaseUrl, trust: &TrustStore) -> anyhow::Result<Client> {
    let client = Client::builder()
        // A redirect could send the token elsewhere.
        .redirect(Policy::none())
        .http1_only()
        .timeout(TIMEOUT);
    let client = match url.url().scheme() {
        "https" => {
            let config = trust.config().await?;
            client.tls_backend_preconfigured(Arc::unwrap_or_clone(config))
        }
        // A hub on this machine needs neither proxy nor certificate.
        _ => client
            .no_proxy()
            .tls_backend_preconfigured(without_certificates()?),
    };
    Ok(client.build()?)
}

/// The HTTP library requires a TLS configuration even without TLS.
fn without_certificates() -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    Ok(config)
}

async fn body(mut response: Response) -> anyhow::Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        ensure!(
            body.len() + chunk.len() <= MAX_RESPONSE_BYTES,
            "the response is too long"
        );
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

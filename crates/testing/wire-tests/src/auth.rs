//! Authentication of websocket connections.

use std::time::{SystemTime, UNIX_EPOCH};

use base64_simd::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::{
    client::Client,
    http_listener::{refused_upgrade, request, upgrade},
    server::{Server, Transport},
};

const TOKEN: &str = "correct horse battery staple é";
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Writes a file for a flag and returns it with its directory.
fn file(content: &str) -> (TempDir, String) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("secret");
    std::fs::write(&path, content).unwrap();
    let path = path.display().to_string();
    (dir, path)
}

async fn server_with_token_file(content: &str) -> Server {
    let (_dir, path) = file(content);
    let flags = ["--ws-auth", "capability-token", "--ws-token-file", &path];
    Server::start(Transport::WebSocket, &flags).await
}

async fn expect_401(server: &Server, headers: &str, body: &str) {
    let answer = refused_upgrade(server, headers).await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (401, body),
        "{headers}"
    );
    assert!(
        answer.head.contains("content-type: text/plain"),
        "{}",
        answer.head
    );
    assert!(!answer.head.contains("www-authenticate"), "{}", answer.head);
}

async fn expect_101(server: &Server, headers: &str) {
    let head = upgrade(&mut server.stream().await, headers).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{headers}: {head}");
}

#[tokio::test]
async fn token_from_a_file_is_accepted() {
    let server = server_with_token_file(&format!("  {TOKEN}\n\n")).await;
    let mut client = Client::upgrade(server.stream().await, Some(TOKEN)).await;
    client.handshake().await;
    client.expect_alive().await;
    for headers in ["Bearer", "bearer", "BEARER", "bEaReR"] {
        expect_101(&server, &format!("Authorization: {headers} {TOKEN}\r\n")).await;
    }
    expect_101(&server, &format!("authorization: Bearer   {TOKEN}  \r\n")).await;
}

#[tokio::test]
async fn token_given_by_digest_is_accepted() {
    let lower = format!("{:x}", Sha256::digest(TOKEN));
    for digest in [lower.clone(), lower.to_ascii_uppercase()] {
        let flags = [
            "--ws-auth",
            "capability-token",
            "--ws-token-sha256",
            &digest,
        ];
        let server = Server::start(Transport::WebSocket, &flags).await;
        expect_101(&server, &format!("Authorization: Bearer {TOKEN}\r\n")).await;
        expect_401(
            &server,
            "Authorization: Bearer x\r\n",
            "invalid websocket bearer token",
        )
        .await;
    }
}

#[tokio::test]
async fn missing_or_wrong_token_is_refused() {
    let server = server_with_token_file(TOKEN).await;
    expect_401(&server, "", "missing websocket bearer token").await;
    for header in ["Basic dXNlcjpwYXNz", "Bearer", "Bearer ", "Token x", TOKEN] {
        let headers = format!("Authorization: {header}\r\n");
        expect_401(&server, &headers, "invalid authorization header").await;
    }
    for token in [
        "x",
        "correct horse",
        &format!("{TOKEN}x"),
        &TOKEN.to_uppercase(),
    ] {
        let headers = format!("Authorization: Bearer {token}\r\n");
        expect_401(&server, &headers, "invalid websocket bearer token").await;
    }
    // Cookies are not accepted.
    expect_401(
        &server,
        &format!("Cookie: token={TOKEN}\r\n"),
        "missing websocket bearer token",
    )
    .await;
}

#[tokio::test]
async fn health_needs_no_token_and_origin_is_checked_first() {
    let server = server_with_token_file(TOKEN).await;
    assert_eq!(request(&server, "GET /readyz", "").await.status, 200);
    assert_eq!(request(&server, "HEAD /healthz", "").await.status, 200);
    let origin = format!("Origin: http://x\r\nAuthorization: Bearer {TOKEN}\r\n");
    assert_eq!(refused_upgrade(&server, &origin).await.status, 403);
    assert_eq!(
        refused_upgrade(&server, "Origin: http://x\r\n")
            .await
            .status,
        403
    );
}

#[tokio::test]
async fn token_file_is_read_once() {
    let (dir, path) = file(TOKEN);
    let flags = ["--ws-auth", "capability-token", "--ws-token-file", &path];
    let server = Server::start(Transport::WebSocket, &flags).await;
    std::fs::write(&path, "another").unwrap();
    expect_101(&server, &format!("Authorization: Bearer {TOKEN}\r\n")).await;
    drop(dir);
    expect_401(
        &server,
        "Authorization: Bearer another\r\n",
        "invalid websocket bearer token",
    )
    .await;
}

fn sign(header: &Value, claims: &Value, secret: &str) -> String {
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode_to_string(value.to_string());
    let signed = format!("{}.{}", encode(header), encode(claims));
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(signed.as_bytes());
    format!(
        "{signed}.{}",
        URL_SAFE_NO_PAD.encode_to_string(mac.finalize().into_bytes())
    )
}

fn token(claims: &Value) -> String {
    sign(&json!({"alg": "HS256", "typ": "JWT"}), claims, SECRET)
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

async fn signed_server(extra: &[&str]) -> Server {
    let (_dir, path) = file(&format!("{SECRET}\n"));
    let mut flags = vec![
        "--ws-auth",
        "signed-bearer-token",
        "--ws-shared-secret-file",
        &path,
    ];
    flags.extend(extra);
    Server::start(Transport::WebSocket, &flags).await
}

#[tokio::test]
async fn signed_token_is_accepted_while_valid() {
    let server = signed_server(&[]).await;
    let now = now();
    for claims in [
        json!({"exp": now + 60}),
        json!({"exp": now - 20}),
        json!({"exp": now + 60, "nbf": now + 20, "iat": 1, "sub": "x", "iss": "any", "aud": ["a"]}),
        json!({"exp": i64::MAX}),
    ] {
        expect_101(
            &server,
            &format!("Authorization: Bearer {}\r\n", token(&claims)),
        )
        .await;
    }
    let mut client = Client::upgrade(
        server.stream().await,
        Some(&token(&json!({"exp": now + 9}))),
    )
    .await;
    client.handshake().await;
    client.expect_alive().await;
}

#[tokio::test]
async fn refused_signed_tokens_give_the_reason() {
    let server = signed_server(&["--ws-issuer", "me", "--ws-audience", "box-7"]).await;
    let now = now();
    let good = json!({"exp": now + 60, "iss": "me", "aud": ["x", "box-7"]});
    expect_101(
        &server,
        &format!("Authorization: Bearer {}\r\n", token(&good)),
    )
    .await;
    let text = json!({"exp": now + 60, "iss": "me", "aud": "box-7"});
    expect_101(
        &server,
        &format!("Authorization: Bearer {}\r\n", token(&text)),
    )
    .await;
    let change = |change: Value| token(&crate::client::with(good.clone(), change));
    let without = |member: &str| {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove(member);
        token(&claims)
    };
    let header = |header: Value| sign(&header, &good, SECRET);
    let hs256 = json!({"alg": "HS256"});
    let (broken, valid) = ("invalid websocket jwt", token(&good));
    for (token, body) in [
        (change(json!({"exp": now - 60})), "expired websocket jwt"),
        (
            change(json!({"nbf": now + 60})),
            "websocket jwt is not valid yet",
        ),
        (
            change(json!({"iss": "you"})),
            "websocket jwt issuer mismatch",
        ),
        (without("iss"), "websocket jwt issuer mismatch"),
        (
            change(json!({"aud": "box-8"})),
            "websocket jwt audience mismatch",
        ),
        (
            change(json!({"aud": []})),
            "websocket jwt audience mismatch",
        ),
        (without("aud"), "websocket jwt audience mismatch"),
        (without("exp"), broken),
        (change(json!({"exp": "soon"})), broken),
        (change(json!({"exp": 4_000_000_000.5})), broken),
        (change(json!({"exp": null})), broken),
        (
            sign(&hs256, &good, "another secret another secret !!"),
            broken,
        ),
        (header(json!({"alg": "none"})), broken),
        (header(json!({"alg": "HS512"})), broken),
        (header(json!({"alg": "RS256"})), broken),
        (header(json!({})), broken),
        ("x.y.z".to_owned(), broken),
        ("no-dots".to_owned(), broken),
        (valid.rsplit_once('.').unwrap().0.to_owned() + ".", broken),
        (format!("{valid}x"), broken),
        (format!("{valid}."), broken),
    ] {
        expect_401(&server, &format!("Authorization: Bearer {token}\r\n"), body).await;
    }
    expect_401(&server, "", "missing websocket bearer token").await;
}

#[tokio::test]
async fn clock_skew_can_be_set() {
    let server = signed_server(&["--ws-max-clock-skew-seconds", "0"]).await;
    let bearer = |exp: i64| format!("Authorization: Bearer {}\r\n", token(&json!({"exp": exp})));
    expect_101(&server, &bearer(now() + 5)).await;
    expect_401(&server, &bearer(now() - 2), "expired websocket jwt").await;
}

/// Requests the health route as another user. Needs privileges.
async fn answer_to(user: &str, server: &Server) -> String {
    let script = "exec 3<>\"/dev/tcp/127.0.0.1/$0\" && \
                  printf 'GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3 && \
                  cat <&3";
    let port = server.port().to_string();
    let mut command = tokio::process::Command::new("setpriv");
    let user = ["--reuid", user, "--regid", user, "--clear-groups"];
    command.args(user).args(["bash", "-c", script, &port]);
    let output = tokio::time::timeout(crate::server::TIMEOUT, command.output());
    let output = output.await.unwrap().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn another_user_is_refused_over_loopback_without_a_token() {
    let server = Server::start(Transport::WebSocket, &[]).await;
    assert_eq!(request(&server, "GET /healthz", "").await.status, 200);
    // Only root can switch to another user.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let answer = answer_to("65534", &server).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(answer.contains("--ws-auth"), "{answer}");
    assert!(answer_to("0", &server).await.starts_with("HTTP/1.1 200"));

    let open = Server::start(Transport::WebSocket, &["--insecure-no-auth"]).await;
    assert!(answer_to("65534", &open).await.starts_with("HTTP/1.1 200"));
    let token = server_with_token_file(TOKEN).await;
    assert!(answer_to("65534", &token).await.starts_with("HTTP/1.1 200"));
}

//! Entry points of the fuzz targets `wire_message` and `path_resolve`.
//!
//! Invariants checked: an accepted message is JSON for any other reader and is equal after
//! re-encoding; canonical text is canonical; native paths round-trip; lexical operations agree with
//! each other. The targets and their corpora are in `fuzz/`.

use std::{ffi::OsStr, fmt, os::unix::ffi::OsStrExt};

use ::bytes::Bytes;
use serde_json::{Value, value::RawValue};

use crate::{
    discovery::{DiscoverCapabilities, DiscoverRoots},
    environment::{ReadEnvironmentConfig, ReadEnvironmentInfo, ReadEnvironmentStatus},
    fs,
    http::{CancelHttpRequest, HttpRequest},
    initialize::InitializeParams,
    message::{
        RequestId, RpcMessage, RpcNotification, RpcRequest, decode_params, encode_binary_head,
        split_binary,
    },
    method::{Method, MethodName},
    outgoing_message::OutgoingMessage,
    path_uri::PathUri,
    process::{
        AttachProcess, CloseStdin, ExecCommand, ListHistory, ListProcesses, PurgeHistory,
        ReadProcess, ReleaseProcess, ResizeProcess, SignalProcess, SnapshotProcess, StartProcess,
        TerminateCommand, TerminateProcess, WaitProcess, WriteCommand, WriteProcess,
    },
    server::{ReadServerStatus, UpgradeServer},
    tunnel::{ListPorts, ListenTunnel, OpenTunnel, TunnelMessage},
};

/// Decodes one message of a peer in every possible way.
///
/// # Panics
/// Panics when an invariant is violated.
pub fn wire_message(message: &[u8]) {
    let frame = Bytes::copy_from_slice(message);
    match split_binary(&frame) {
        None => check_text(message, None),
        Some(Ok((header, data))) => {
            let mut reencoded = Vec::new();
            encode_binary_head(&header, &mut reencoded);
            reencoded.extend_from_slice(&data);
            assert_eq!(reencoded, message, "re-encoded binary message differs");
            check_text(&header, Some(&data));
        }
        Some(Err(_)) => {}
    }
}

fn check_text(text: &[u8], data: Option<&Bytes>) {
    let message = match RpcMessage::decode_with(text, data.cloned()) {
        Ok(message) => message,
        Err(error) => return assert!(!error.to_string().is_empty(), "error has no message"),
    };
    let Ok(Value::Object(members)) = serde_json::from_slice(text) else {
        panic!("message is not a JSON object");
    };
    match &message {
        RpcMessage::Request(request) => {
            check_id(&request.id, &members["id"]);
            assert_eq!(members["method"], *request.method);
            check_params(request);
            check_round_trip(
                &message,
                &OutgoingMessage::request(&request.id, &request.method, &request.params),
            );
        }
        RpcMessage::Notification(note) => {
            assert_eq!(members["method"], *note.method);
            check_tunnel(note);
            check_round_trip(
                &message,
                &OutgoingMessage::notification(&note.method, &note.params),
            );
        }
        RpcMessage::Response(response) => {
            check_id(&response.id, &members["id"]);
            check_round_trip(
                &message,
                &OutgoingMessage::result(&response.id, &response.result),
            );
        }
        RpcMessage::Error(response) => {
            check_id(&response.id, &members["id"]);
            check_round_trip(
                &message,
                &OutgoingMessage::error(&response.id, &response.error),
            );
        }
    }
}

fn check_id(id: &RequestId, member: &Value) {
    let mut text = Vec::new();
    id.encode_append(&mut text);
    assert_eq!(
        serde_json::from_slice::<Value>(&text).ok().as_ref(),
        Some(member)
    );
}

/// Checks that a re-encoded message has the announced length and decodes to the same message.
fn check_round_trip(message: &RpcMessage<'_>, reencoded: &OutgoingMessage) {
    let mut text = Vec::new();
    reencoded.encode_text(&mut text);
    assert_eq!(text.len(), reencoded.text_len());
    let decoded = RpcMessage::decode(&text);
    let decoded = decoded.as_ref().map(comparable);
    assert_eq!(
        decoded,
        Ok(comparable(message)),
        "{}",
        String::from_utf8_lossy(&text)
    );
}

/// Returns the parts that re-encoding preserves. Absent params are null; trace and data are
/// dropped.
fn comparable<'a>(message: &'a RpcMessage<'_>) -> (Option<&'a RequestId>, &'a str, String) {
    let raw = |raw: Option<&RawValue>| raw.map_or("null", RawValue::get).to_owned();
    match message {
        RpcMessage::Request(request) => (Some(&request.id), &request.method, raw(request.params)),
        RpcMessage::Notification(note) => (None, &note.method, raw(note.params)),
        RpcMessage::Response(response) => (Some(&response.id), "", raw(Some(response.result))),
        RpcMessage::Error(response) => (Some(&response.id), "", response.error.to_string()),
    }
}

/// Checks that a decoded tunnel notification survives its encoding.
fn check_tunnel(note: &RpcNotification<'_>) {
    match TunnelMessage::decode(note) {
        Some(Ok(decoded)) => {
            let mut text = Vec::new();
            decoded.clone().encode().encode_text(&mut text);
            let Ok(RpcMessage::Notification(again)) = RpcMessage::decode(&text) else {
                panic!("failed to encode {decoded:?}");
            };
            assert_eq!(TunnelMessage::decode(&again), Some(Ok(decoded)));
        }
        Some(Err(error)) => assert!(!error.0.is_empty(), "error has no message"),
        None => {}
    }
}

/// Decodes the params as those of every method, because a peer may send any to any.
fn check_params(request: &RpcRequest<'_>) {
    for &method in MethodName::ALL {
        let params = request.params;
        match method {
            MethodName::Initialize => check::<InitializeParams>(params),
            MethodName::EnvironmentInfo => check::<ReadEnvironmentInfo>(params),
            MethodName::EnvironmentStatus => check::<ReadEnvironmentStatus>(params),
            MethodName::EnvironmentConfigRead => check::<ReadEnvironmentConfig>(params),
            MethodName::CapabilityRootsDiscover => check::<DiscoverRoots>(params),
            MethodName::CapabilitiesDiscover => check::<DiscoverCapabilities>(params),
            MethodName::HttpRequest => check::<HttpRequest>(params),
            MethodName::HttpRequestCancel => check::<CancelHttpRequest>(params),
            MethodName::ProcessStart => check_start(params),
            MethodName::ProcessRead => check::<ReadProcess>(params),
            MethodName::ProcessWrite => check::<WriteProcess>(params),
            MethodName::ProcessCloseStdin => check::<CloseStdin>(params),
            MethodName::ProcessResize => check::<ResizeProcess>(params),
            MethodName::ProcessSignal => check::<SignalProcess>(params),
            MethodName::ProcessTerminate => check::<TerminateProcess>(params),
            MethodName::ProcessWait => check::<WaitProcess>(params),
            MethodName::ProcessSnapshot => check::<SnapshotProcess>(params),
            MethodName::ProcessAttach => check::<AttachProcess>(params),
            MethodName::ProcessRelease => check::<ReleaseProcess>(params),
            MethodName::ProcessList => check::<ListProcesses>(params),
            MethodName::HistoryList => check::<ListHistory>(params),
            MethodName::HistoryPurge => check::<PurgeHistory>(params),
            MethodName::FsReadFile => check::<fs::ReadFile>(params),
            MethodName::FsWriteFile => check::<fs::WriteFile>(params),
            MethodName::FsCreateDirectory => check::<fs::CreateDirectory>(params),
            MethodName::FsGetMetadata => check::<fs::GetMetadata>(params),
            MethodName::FsCanonicalize => check::<fs::CanonicalizePath>(params),
            MethodName::FsReadDirectory => check::<fs::ReadDirectory>(params),
            MethodName::FsWalk => check::<fs::WalkTree>(params),
            MethodName::FsRemove => check::<fs::RemovePath>(params),
            MethodName::FsCopy => check::<fs::CopyPath>(params),
            MethodName::FsRename => check::<fs::RenamePath>(params),
            MethodName::FsSetMetadata => check::<fs::SetMetadata>(params),
            MethodName::FsCreateSymlink => check::<fs::CreateSymlink>(params),
            MethodName::FsOpen => check::<fs::OpenFile>(params),
            MethodName::FsReadBlock => check::<fs::ReadBlock>(params),
            MethodName::FsWriteBlock => check::<fs::WriteBlock>(params),
            MethodName::FsClose => check::<fs::CloseFile>(params),
            MethodName::FsWatchMissing => check::<fs::WatchMissing>(params),
            MethodName::FsWatch => check::<fs::StartWatch>(params),
            MethodName::FsUnwatch => check::<fs::StopWatch>(params),
            MethodName::FsSearch => check::<fs::SearchText>(params),
            MethodName::FsFind => check::<fs::FindPaths>(params),
            MethodName::TunnelOpen => check::<OpenTunnel>(params),
            MethodName::TunnelListen => check::<ListenTunnel>(params),
            MethodName::PortsList => check::<ListPorts>(params),
            MethodName::ServerStatus => check::<ReadServerStatus>(params),
            MethodName::ServerUpgrade => check::<UpgradeServer>(params),
            MethodName::CommandExec => check::<ExecCommand>(params),
            MethodName::CommandExecWrite => check::<WriteCommand>(params),
            MethodName::CommandExecTerminate => check::<TerminateCommand>(params),
        }
    }
}

fn check<T: Method + PartialEq + fmt::Debug>(params: Option<&RawValue>) {
    match decode_params::<T>(params) {
        Ok(value) => check_value(&value),
        Err(error) => assert!(!error.0.is_empty(), "error has no message"),
    }
}

fn check_start(params: Option<&RawValue>) {
    if let Ok(value) = decode_params::<StartProcess>(params) {
        // Members of arbitrary shape may contain fractions, which are not exact.
        check_value(&StartProcess {
            sandbox: None,
            managed_network: None,
            network_proxy: None,
            ..value
        });
    }
}

fn check_value<T: Method + PartialEq + fmt::Debug>(value: &T) {
    let Ok(again) = serde_json::value::to_raw_value(value) else {
        panic!("failed to encode {value:?}");
    };
    assert_eq!(decode_params::<T>(Some(&again)).as_ref(), Ok(value));
}

/// Parses the first line as a path URI and joins the rest of the input to it.
///
/// # Panics
/// Panics when an invariant is violated.
pub fn path_resolve(input: &[u8]) {
    let mut parts = input.splitn(2, |byte| *byte == b'\n');
    let (uri, name) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    let Ok(text) = std::str::from_utf8(uri) else {
        return;
    };
    match PathUri::parse(text) {
        Ok(uri) => check_uri(&uri, name),
        Err(error) => assert!(!error.to_string().is_empty(), "error has no message"),
    }
}

fn check_uri(uri: &PathUri, name: &[u8]) {
    let reparsed = PathUri::parse(uri.as_str());
    assert_eq!(reparsed.as_ref().map(PathUri::as_str), Ok(uri.as_str()));
    // Containment fails closed for ambiguous segments.
    let parent = uri.parent().unwrap_or_else(|| uri.clone());
    assert!(
        parent.contains(uri) || has_separator(uri),
        "{parent} does not contain {uri}"
    );
    if let Ok(text) = std::str::from_utf8(name)
        && let Ok(joined) = uri.join(text)
    {
        let reparsed = PathUri::parse(joined.as_str());
        assert_eq!(reparsed.as_ref().map(PathUri::as_str), Ok(joined.as_str()));
    }
    if let Ok(native) = uri.to_native() {
        assert!(native.is_absolute());
        let Ok(back) = PathUri::from_native(&native) else {
            panic!("{native:?} has no URI");
        };
        assert_eq!(back.to_native().as_ref(), Ok(&native));
        let one_name =
            !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0);
        if let (true, Some(child)) = (one_name, back.child(OsStr::from_bytes(name))) {
            assert_eq!(child.to_native(), Ok(native.join(OsStr::from_bytes(name))));
            assert_eq!(
                PathUri::from_native(&native.join(OsStr::from_bytes(name))),
                Ok(child)
            );
        }
    }
}

/// Returns whether a segment may decode to several names.
fn has_separator(uri: &PathUri) -> bool {
    let text = uri.as_str().to_ascii_lowercase();
    text.contains("%2f") || text.contains("%5c")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Runs a target on each file of its corpus.
    fn replay_corpus(name: &str, target: fn(&[u8])) {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
        let files: Vec<_> = std::fs::read_dir(corpora.join(name))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert!(files.len() > 20, "corpus is missing");
        for file in files {
            println!("{}", file.path().display());
            target(&std::fs::read(file.path()).unwrap());
        }
    }

    #[test]
    fn message_corpus_is_replayed() {
        replay_corpus("wire_message", wire_message);
    }

    #[test]
    fn path_corpus_is_replayed() {
        replay_corpus("path_resolve", path_resolve);
    }

    #[test]
    fn random_text_upholds_the_invariants() {
        // Fragments that matter to the parser, combined by a counter in place of a fuzzer.
        const PIECES: &[&str] = &[
            "file:",
            "/",
            "//",
            "\\",
            ".",
            "..",
            "%2e",
            "%2F",
            "%00",
            "C:",
            "c|",
            "%3A",
            "a",
            "é",
            " ",
            "\n",
            "?",
            "#",
            "%",
            "localhost",
            "server",
            "%00/bad/path/L0M6L2QvZg",
            "\t",
            "%FF",
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..50_000 {
            let mut text = String::from("file:");
            loop {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let pick = usize::try_from(state >> 33).unwrap();
                text.push_str(PIECES[pick % PIECES.len()]);
                if pick.is_multiple_of(11) {
                    break;
                }
            }
            path_resolve(text.as_bytes());
        }
    }
}

//! What a server asks a client, and the answers that need no thought.

use exec_wire::{
    error::{ErrorCode, RpcError},
    message::{Request, RequestId, decode_params},
    method::NETWORK_POLICY_REQUEST,
    network::{Decision, PolicyAnswer, PolicyRequest},
    outgoing::Outgoing,
};

/// Decodes a question about the network of a process. Anything else is refused by the answer that
/// is returned.
pub(crate) fn decode(request: &Request<'_>) -> Result<PolicyRequest, Outgoing> {
    let refuse = |error| Outgoing::error(&request.id, &error);
    if request.method != NETWORK_POLICY_REQUEST {
        let message = format!("this client does not implement `{}`", request.method);
        return Err(refuse(RpcError::new(ErrorCode::METHOD_NOT_FOUND, message)));
    }
    decode_params(request.params)
        .map_err(|error| refuse(RpcError::invalid_params(error.to_string())))
}

/// Answers a question.
pub(crate) fn answer(id: &RequestId, decision: Decision) -> Outgoing {
    Outgoing::result(id, &PolicyAnswer { decision })
}

/// What is decided when nobody decides.
pub(crate) fn not_allowed() -> Decision {
    Decision::Deny {
        reason: "not_allowed".to_owned(),
    }
}

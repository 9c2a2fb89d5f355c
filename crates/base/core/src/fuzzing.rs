//! Entry point of the fuzz target `rpc_peer`: a byte program that drives gate, order and calls.
//!
//! Checks each core against a trivial model. The target and its corpus are in `fuzz/`.

use std::collections::{BTreeMap, VecDeque};

use exec_wire::{
    id::ProcessId,
    initialize::ProtocolExtension,
    message::{RequestId, RpcMessage},
    method::{MethodName, OrderingClass},
};

use crate::{
    peer::{GateError, HandshakeGate, MessageAction, PendingCalls, PendingCallsError},
    request_order::{OrderTicket, OrderingClaim, RequestOrder},
};

/// Runs a program: the first byte sets the limits, then each pair of bytes is an instruction and
/// its operand.
///
/// # Panics
/// Panics when a core and its model disagree.
pub fn rpc_peer(program: &[u8]) {
    let Some((&limits, program)) = program.split_first() else {
        return;
    };
    let mut gate = GateModel::default();
    let mut order = OrderModel::new(usize::from(limits & 0x0f));
    let mut calls = CallsModel::new(usize::from(limits >> 4));
    for (instruction, operand) in program.chunks_exact(2).map(|pair| (pair[0], pair[1])) {
        match instruction % 12 {
            0 => gate.message(INITIALIZED, operand),
            1 if operand.is_multiple_of(2) => gate.message(UNKNOWN, operand),
            1 => gate.message(ACKNOWLEDGE, operand),
            2 => gate.message(RESPONSE, operand),
            3 => gate.message(REQUEST, operand),
            4 => gate.session(operand),
            5 | 6 => order.submit(operand),
            7 => order.poll(),
            8 => order.finish(operand),
            9 => calls.start_call(operand),
            10 => calls.answer(operand),
            _ => calls.forget(operand),
        }
        gate.check();
    }
    order.run_to_completion();
    calls.drain();
}

const INITIALIZED: &str = r#"{"method":"initialized"}"#;
const UNKNOWN: &str = r#"{"method":"nope"}"#;
const ACKNOWLEDGE: &str = r#"{"method":"process/acknowledge","params":{"processId":"p","seq":1}}"#;
const RESPONSE: &str = r#"{"id":1,"result":{}}"#;
const REQUEST: &str = r#"{"id":1,"method":"process/list"}"#;

/// Gate with the expected handshake stage: 0 new, 1 initialized, 2 ready.
#[derive(Default)]
struct GateModel {
    gate: HandshakeGate,
    stage: u8,
    acknowledges: bool,
}

impl GateModel {
    fn message(&mut self, text: &str, operand: u8) {
        let Ok(message) = RpcMessage::decode(text.as_bytes()) else {
            panic!("failed to decode {text}");
        };
        let input = self.gate.handle_message(message);
        match (text, input) {
            (INITIALIZED, MessageAction::Ignore | MessageAction::Ready) => {
                assert_ne!(self.stage, 0, "initialized accepted before initialize");
                self.stage = 2;
            }
            (INITIALIZED, MessageAction::Reply(reply)) => {
                assert_eq!(self.stage, 0, "initialized refused after initialize");
                check_refusal(&reply);
            }
            (UNKNOWN, MessageAction::Reply(reply)) => check_refusal(&reply),
            (ACKNOWLEDGE, MessageAction::Acknowledge(_)) => {
                assert!(
                    self.acknowledges && self.stage == 2,
                    "acknowledgement accepted without the extension"
                );
            }
            (ACKNOWLEDGE, MessageAction::Reply(reply)) => {
                assert!(
                    !self.acknowledges || self.stage < 2,
                    "acknowledgement refused despite the extension"
                );
                check_refusal(&reply);
            }
            (RESPONSE, MessageAction::Response(RpcMessage::Response(response))) => {
                assert_eq!(response.id, RequestId::Number(1));
            }
            (REQUEST, MessageAction::Request(request)) => {
                assert_eq!(request.id, RequestId::Number(1))
            }
            (text, input) => panic!("{text} ({operand}) became {input:?}"),
        }
    }

    /// Completes `initialize` if it is admitted. An odd operand grants acknowledgements.
    fn session(&mut self, operand: u8) {
        if self.gate.admit(MethodName::Initialize).is_ok() {
            self.acknowledges = !operand.is_multiple_of(2);
            let granted = [ProtocolExtension::Acknowledge];
            let count = usize::from(self.acknowledges);
            self.gate.handle_initialize(&granted[..count]);
            self.stage = 1;
        }
    }

    fn check(&self) {
        assert_eq!(self.gate.is_ready(), self.stage == 2);
        for &method in MethodName::ALL {
            let family = method.family();
            let expected = match (method, self.stage) {
                (MethodName::Initialize, 0) => Ok(()),
                (MethodName::Initialize, _) => Err(GateError::InitializedTwice),
                (_, 0) => Err(GateError::NotInitialized(family)),
                (_, 1) => Err(GateError::NotReady(family)),
                (_, _) => Ok(()),
            };
            assert_eq!(self.gate.admit(method), expected);
        }
    }
}

fn check_refusal(reply: &exec_wire::outgoing_message::OutgoingMessage) {
    let mut text = Vec::new();
    reply.encode_text(&mut text);
    let Ok(RpcMessage::Error(error)) = RpcMessage::decode(&text) else {
        panic!("refusal is not an error response");
    };
    assert_eq!(error.id, RequestId::NONE);
    assert_eq!(error.error.code.0, -32600);
}

/// Order with the expected queued and running requests.
struct OrderModel {
    order: RequestOrder<()>,
    max_running: usize,
    waiting: VecDeque<(OrderTicket, OrderingClaim)>,
    running: Vec<(OrderTicket, OrderingClaim)>,
}

impl OrderModel {
    fn new(max_running: usize) -> Self {
        let (waiting, running) = (VecDeque::new(), Vec::new());
        Self {
            order: RequestOrder::new(max_running),
            max_running: max_running.max(1),
            waiting,
            running,
        }
    }

    fn submit(&mut self, operand: u8) {
        let claim = match operand % 7 {
            0 => OrderingClaim::from(OrderingClass::Reads),
            6 => OrderingClaim::from(OrderingClass::Files),
            1 => OrderingClaim::from(OrderingClass::Changes),
            2 => OrderingClaim::from(OrderingClass::Control),
            id => OrderingClaim {
                starts: ProcessId::new(&id.to_string()).ok(),
                ..OrderingClass::Starts.into()
            },
        };
        let ticket = self.order.submit(claim.clone(), ());
        let last = self
            .waiting
            .back()
            .or(self.running.last())
            .map(|(ticket, _)| *ticket);
        assert!(last < Some(ticket), "tickets do not increase");
        self.waiting.push_back((ticket, claim));
    }

    /// The first queued request runs if the limit allows it and no running request conflicts.
    fn poll(&mut self) {
        let polled = self.order.poll_ready().map(|(ticket, ())| ticket);
        let ready = self.waiting.front().is_some_and(|(_, claim)| {
            self.running.len() < self.max_running
                && self.running.iter().all(|(_, other)| match claim.ordering {
                    OrderingClass::Reads => other.ordering == OrderingClass::Reads,
                    OrderingClass::Files => other.ordering == OrderingClass::Files,
                    OrderingClass::Starts => {
                        other.ordering == OrderingClass::Starts && other.starts != claim.starts
                    }
                    OrderingClass::Changes | OrderingClass::Control => false,
                })
        });
        assert_eq!(
            polled.is_some(),
            ready,
            "{:?} beside {:?}",
            self.waiting,
            self.running
        );
        if ready && let Some(first) = self.waiting.pop_front() {
            assert_eq!(polled, Some(first.0), "a request was overtaken");
            self.running.push(first);
        }
        assert!(self.running.len() <= self.max_running);
        assert_eq!(
            self.order.is_empty(),
            self.waiting.is_empty() && self.running.is_empty()
        );
    }

    fn finish(&mut self, operand: u8) {
        if !self.running.is_empty() {
            let index = usize::from(operand) % self.running.len();
            let (ticket, _) = self.running.swap_remove(index);
            self.order.finish(ticket);
            // Finishing twice has no effect.
            self.order.finish(ticket);
        }
    }

    /// Runs until every queued request has completed.
    fn run_to_completion(mut self) {
        while !(self.waiting.is_empty() && self.running.is_empty()) {
            let outstanding = self.waiting.len() + self.running.len();
            self.poll();
            self.finish(0);
            assert!(
                self.waiting.len() + self.running.len() < outstanding,
                "a request starved"
            );
        }
        assert!(self.order.is_empty());
    }
}

/// Pending calls with the expected waiters by id.
struct CallsModel {
    calls: PendingCalls<u8>,
    max_pending: usize,
    next: i64,
    waiting: BTreeMap<i64, u8>,
}

impl CallsModel {
    fn new(max_pending: usize) -> Self {
        Self {
            calls: PendingCalls::new(max_pending),
            max_pending,
            next: 1,
            waiting: BTreeMap::new(),
        }
    }

    fn start_call(&mut self, operand: u8) {
        let id = self.calls.register(operand);
        if self.waiting.len() >= self.max_pending {
            return assert_eq!(id, Err(PendingCallsError::TooMany(self.max_pending)));
        }
        assert_eq!(id, Ok(RequestId::Number(self.next)));
        self.waiting.insert(self.next, operand);
        self.next += 1;
    }

    /// Sends a response with the id in the operand, which may not belong to a call.
    fn answer(&mut self, operand: u8) {
        let id = i64::from(operand >> 2);
        let text = match operand % 4 {
            0 => format!(r#"{{"id":{id},"result":{operand}}}"#),
            1 => format!(r#"{{"id":{id},"error":{{"code":{operand},"message":""}}}}"#),
            2 => format!(r#"{{"id":"{id}","result":{operand}}}"#),
            _ => format!(r#"{{"id":{id},"method":"network/policyRequest"}}"#),
        };
        let Ok(message) = RpcMessage::decode(text.as_bytes()) else {
            panic!("failed to decode {text}");
        };
        let answer = self.calls.handle_response(message);
        let expected = if operand % 4 < 2 {
            self.waiting.remove(&id)
        } else {
            None
        };
        assert_eq!(
            answer.as_ref().map(|answer| answer.waiter),
            expected,
            "{text}"
        );
        if let Some(answer) = answer {
            match answer.result {
                Ok(result) => assert_eq!(result.get(), operand.to_string()),
                Err(error) => assert_eq!(error.code.0, i64::from(operand)),
            }
        }
    }

    fn forget(&mut self, operand: u8) {
        let id = i64::from(operand >> 2);
        let cancelled = self.calls.cancel(&RequestId::Number(id));
        assert_eq!(cancelled, self.waiting.remove(&id));
        assert_eq!(
            self.calls.cancel(&RequestId::Text(id.to_string().into())),
            None
        );
    }

    fn drain(mut self) {
        assert!(self.calls.drain().eq(self.waiting.into_values()));
        assert_eq!(self.calls.drain().count(), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn corpus_is_replayed() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/rpc_peer");
        let files: Vec<_> = fs::read_dir(corpus).unwrap().map(Result::unwrap).collect();
        assert!(files.len() > 20, "corpus is missing");
        for file in files {
            println!("{}", file.path().display());
            rpc_peer(&fs::read(file.path()).unwrap());
        }
    }

    proptest! {
        #[test]
        fn cores_agree_with_their_models_for_any_program(
            program in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            rpc_peer(&program);
        }
    }
}

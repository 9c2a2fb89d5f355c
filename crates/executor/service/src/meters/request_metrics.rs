//! Requests, by method.

use std::time::Duration;

use exec_wire::{
    error::{ErrorCode, RpcError},
    method::MethodName,
};

use super::{Counter, Gauge, Histogram};

/// What is counted of requests.
#[derive(Debug)]
pub struct RequestMeters {
    methods: Box<[MethodMeter]>,
    /// Requests that are not answered yet.
    pub in_flight: Gauge,
    /// Requests for methods that do not exist.
    pub unknown_methods: Counter,
    /// Messages that were none.
    pub malformed: Counter,
}

/// What is counted of one method.
#[derive(Debug)]
pub struct MethodMeter {
    /// The method.
    pub method: MethodName,
    outcomes: [Counter; Outcome::ALL.len()],
    /// From the arrival of a request to its answer; those without an answer are left out.
    pub latency: Histogram,
}

impl Default for RequestMeters {
    fn default() -> Self {
        let meter = |method: &MethodName| MethodMeter {
            method: *method,
            outcomes: Default::default(),
            latency: Histogram::default(),
        };
        Self {
            methods: MethodName::ALL.iter().map(meter).collect(),
            in_flight: Gauge::default(),
            unknown_methods: Counter::default(),
            malformed: Counter::default(),
        }
    }
}

impl RequestMeters {
    pub(crate) fn ended(&self, method: MethodName, outcome: Outcome, after: Duration) {
        // The table has one row for each method, in the order of the methods.
        if let Some(meter) = self.methods.get(method as usize) {
            meter.outcomes[outcome as usize].increment();
            if outcome != Outcome::Cancelled {
                meter.latency.record(after);
            }
        }
    }

    /// Returns the methods that were asked for.
    pub fn used(&self) -> impl Iterator<Item = &MethodMeter> {
        self.methods.iter().filter(|meter| meter.total() > 0)
    }
}

impl MethodMeter {
    /// Returns how often each outcome came, if it came.
    pub fn outcomes(&self) -> impl Iterator<Item = (Outcome, u64)> {
        Outcome::ALL
            .into_iter()
            .map(|outcome| (outcome, self.outcomes[outcome as usize].value()))
            .filter(|(_, count)| *count > 0)
    }

    fn total(&self) -> u64 {
        self.outcomes.iter().map(Counter::value).sum()
    }
}

/// How a request ended. The names are few and fixed, whatever clients send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// With a result.
    Ok,
    /// With -32600.
    InvalidRequest,
    /// With -32602.
    InvalidParams,
    /// With -32004.
    NotFound,
    /// With -32010.
    SessionAttached,
    /// With -32603.
    Internal,
    /// With another code.
    OtherError,
    /// Without an answer: its connection ended first.
    Cancelled,
}

impl Outcome {
    /// Every one of them.
    pub const ALL: [Self; 8] = [
        Self::Ok,
        Self::InvalidRequest,
        Self::InvalidParams,
        Self::NotFound,
        Self::SessionAttached,
        Self::Internal,
        Self::OtherError,
        Self::Cancelled,
    ];

    /// Returns how an answer with this error is counted.
    pub fn of(error: &RpcError) -> Self {
        match error.code {
            ErrorCode::INVALID_REQUEST => Self::InvalidRequest,
            ErrorCode::INVALID_PARAMS => Self::InvalidParams,
            ErrorCode::NOT_FOUND => Self::NotFound,
            ErrorCode::SESSION_ATTACHED => Self::SessionAttached,
            ErrorCode::INTERNAL => Self::Internal,
            _ => Self::OtherError,
        }
    }

    /// Returns the code that travels, if there is one that is always the same.
    pub fn code(self) -> Option<i64> {
        let code = match self {
            Self::Ok | Self::OtherError | Self::Cancelled => return None,
            Self::InvalidRequest => ErrorCode::INVALID_REQUEST,
            Self::InvalidParams => ErrorCode::INVALID_PARAMS,
            Self::NotFound => ErrorCode::NOT_FOUND,
            Self::SessionAttached => ErrorCode::SESSION_ATTACHED,
            Self::Internal => ErrorCode::INTERNAL,
        };
        Some(code.0)
    }

    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::InvalidRequest => "invalid_request",
            Self::InvalidParams => "invalid_params",
            Self::NotFound => "not_found",
            Self::SessionAttached => "session_attached",
            Self::Internal => "internal",
            Self::OtherError => "other_error",
            Self::Cancelled => "cancelled",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_has_its_own_row() {
        let meters = RequestMeters::default();
        for method in MethodName::ALL {
            meters.ended(*method, Outcome::Ok, Duration::ZERO);
        }
        meters.ended(MethodName::ProcessRead, Outcome::Cancelled, Duration::ZERO);
        let counted: Vec<_> = meters.used().map(|meter| meter.method).collect();
        assert_eq!(counted, MethodName::ALL);
        for meter in meters.used() {
            let outcomes: Vec<_> = meter.outcomes().collect();
            let expected: &[_] = match meter.method == MethodName::ProcessRead {
                true => &[(Outcome::Ok, 1), (Outcome::Cancelled, 1)],
                false => &[(Outcome::Ok, 1)],
            };
            assert_eq!(outcomes, expected, "{:?}", meter.method);
            assert_eq!(meter.latency.values().count, 1);
        }
    }
}

//! Request counts and latencies by method and outcome.

use std::time::Duration;

use exec_wire::{
    error::{ErrorCode, RpcError},
    method::MethodName,
};

use super::{Counter, Gauge, LatencyHistogram};

/// Metrics of all requests.
#[derive(Debug)]
pub struct RequestMetrics {
    methods: Box<[MethodMetrics]>,
    /// Requests in flight.
    pub in_flight: Gauge,
    /// Requests for unknown methods.
    pub unknown_methods: Counter,
    /// Malformed messages.
    pub malformed: Counter,
}

/// Metrics of one method.
#[derive(Debug)]
pub struct MethodMetrics {
    /// The method.
    pub method: MethodName,
    outcomes: [Counter; RequestOutcome::ALL.len()],
    /// Time from the arrival of a request to its response. Cancelled requests are excluded.
    pub latency: LatencyHistogram,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        let meter = |method: &MethodName| MethodMetrics {
            method: *method,
            outcomes: Default::default(),
            latency: LatencyHistogram::default(),
        };
        Self {
            methods: MethodName::ALL.iter().map(meter).collect(),
            in_flight: Gauge::default(),
            unknown_methods: Counter::default(),
            malformed: Counter::default(),
        }
    }
}

impl RequestMetrics {
    pub(crate) fn ended(&self, method: MethodName, outcome: RequestOutcome, after: Duration) {
        // The table has one row for each method, in declaration order.
        if let Some(meter) = self.methods.get(method as usize) {
            meter.outcomes[outcome as usize].increment();
            if outcome != RequestOutcome::Cancelled {
                meter.latency.record(after);
            }
        }
    }

    /// Returns the methods that were called at least once.
    pub fn called_methods(&self) -> impl Iterator<Item = &MethodMetrics> {
        self.methods.iter().filter(|meter| meter.total() > 0)
    }
}

impl MethodMetrics {
    /// Returns the count of each outcome that occurred.
    pub fn outcomes(&self) -> impl Iterator<Item = (RequestOutcome, u64)> {
        RequestOutcome::ALL
            .into_iter()
            .map(|outcome| (outcome, self.outcomes[outcome as usize].value()))
            .filter(|(_, count)| *count > 0)
    }

    fn total(&self) -> u64 {
        self.outcomes.iter().map(Counter::value).sum()
    }
}

/// Outcome of a request. The set of labels is fixed, independent of client input.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RequestOutcome {
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
    /// No response: the connection ended first.
    Cancelled,
}

impl RequestOutcome {
    /// All outcomes.
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

    /// Returns the outcome of an error response.
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

    /// Returns the JSON-RPC error code, if the outcome implies one.
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

    /// Returns the label.
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
    fn each_method_has_its_own_counters() {
        let metrics = RequestMetrics::default();
        for method in MethodName::ALL {
            metrics.ended(*method, RequestOutcome::Ok, Duration::ZERO);
        }
        metrics.ended(
            MethodName::ProcessRead,
            RequestOutcome::Cancelled,
            Duration::ZERO,
        );
        let counted: Vec<_> = metrics.called_methods().map(|meter| meter.method).collect();
        assert_eq!(counted, MethodName::ALL);
        for meter in metrics.called_methods() {
            let outcomes: Vec<_> = meter.outcomes().collect();
            let expected: &[_] = match meter.method == MethodName::ProcessRead {
                true => &[(RequestOutcome::Ok, 1), (RequestOutcome::Cancelled, 1)],
                false => &[(RequestOutcome::Ok, 1)],
            };
            assert_eq!(outcomes, expected, "{:?}", meter.method);
            assert_eq!(meter.latency.values().count, 1);
        }
    }
}

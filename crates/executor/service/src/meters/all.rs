//! Everything that one service counts.

use super::{Counter, Endings, Gauge, Refusals, RequestMeters, Rulings};

/// What one service has counted since it was made.
#[derive(Debug, Default)]
pub struct Meters {
    /// Connections that are open.
    pub connections: Gauge,
    /// Connections that were opened.
    pub connections_opened: Counter,
    /// Sessions that began.
    pub sessions_opened: Counter,
    /// Sessions that a client came back to.
    pub sessions_resumed: Counter,
    /// Sessions whose client did not come back in time.
    pub sessions_expired: Counter,
    /// Processes that were started.
    pub processes_started: Counter,
    /// Processes that ended, by cause.
    pub processes_ended: Endings,
    /// Processes that did not start, by reason.
    pub process_refusals: Refusals,
    /// Processes that ended after their sandbox seems to have refused something.
    pub sandbox_denials: Counter,
    /// Decisions about connections of processes.
    pub network_decisions: Rulings,
    /// Requests.
    pub requests: RequestMeters,
    /// Answers that nobody waited for.
    pub unsolicited_responses: Counter,
    /// Output of processes that was sent as events.
    pub output_bytes: Counter,
    /// Input that processes were given.
    pub input_bytes: Counter,
    /// Content of files that was read for clients.
    pub file_read_bytes: Counter,
    /// Content of files that clients wrote.
    pub file_written_bytes: Counter,
    /// Messages that came.
    pub messages_received: Counter,
    /// What they took, without the framing of the transport.
    pub received_bytes: Counter,
    /// What was handed to transports.
    pub sent_bytes: Counter,
}

/// How many of what there are in a service at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Levels {
    /// Sessions with a connection.
    pub sessions_attached: usize,
    /// Sessions that wait for their client.
    pub sessions_detached: usize,
    /// Processes that run.
    pub processes_running: usize,
    /// Those of them that belong to no session.
    pub detached_running: usize,
    /// Processes that are over and can still be read.
    pub processes_finished: usize,
    /// Output that can be read again.
    pub retained_bytes: usize,
    /// Answers that wait for clients to take them.
    pub outbox_bytes: usize,
}

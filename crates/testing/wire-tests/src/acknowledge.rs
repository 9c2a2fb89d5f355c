//! The extension `acknowledge`: unacknowledged output is retained, and too much of it pauses the
//! process.

use serde_json::{Value, json};

use crate::{
    backpressure::settled,
    client::{Client, decode, script_params},
    over_every_socket, over_every_transport, over_one_transport,
    server::{Server, Transport, proc_line},
    sessions,
};

mod every_transport {
    use super::*;

    over_every_transport!(malformed_acknowledgement_is_refused_without_side_effects);

    async fn malformed_acknowledgement_is_refused_without_side_effects(transport: Transport) {
        super::check_malformed(transport).await;
    }
}

mod every_socket {
    use super::*;

    over_every_socket!(
        process_pauses_without_acknowledgement_and_resumes_with_it,
        disconnect_loses_no_unacknowledged_output,
    );

    async fn process_pauses_without_acknowledgement_and_resumes_with_it(transport: Transport) {
        super::check_pause_and_resume(transport).await;
    }

    async fn disconnect_loses_no_unacknowledged_output(transport: Transport) {
        super::check_disconnect(transport).await;
    }
}

over_one_transport!(
    paused_process_does_not_block_its_sibling,
    paused_process_does_not_hit_the_idle_limit,
    output_of_a_paused_process_survives_terminate,
    detached_process_is_not_paused,
    without_the_extension_nothing_pauses_and_acknowledge_is_refused,
);

/// Writes 8 MB in which every position is recognisable.
const SCRIPT: &str = "exec seq 1 1188000";
/// Limit of unacknowledged bytes.
const WINDOW: usize = 1 << 20;
/// Bytes that may have been in flight when the process paused.
const SLACK: usize = 512 << 10;

fn written() -> Vec<u8> {
    let lines: Vec<String> = (1..=1_188_000).map(|line| format!("{line}\n")).collect();
    lines.concat().into_bytes()
}

/// Initializes with the extension and returns the session id.
async fn initialize(client: &mut Client) -> String {
    let params = json!({"extensions": ["acknowledge"]});
    let response = client.initialize(params).await;
    assert_eq!(response["extensions"], json!(["acknowledge"]));
    client.send(r#"{"method":"initialized"}"#).await;
    response["sessionId"].as_str().unwrap().to_owned()
}

async fn acknowledge(client: &mut Client, id: &str, seq: u64) {
    let params = json!({"processId": id, "seq": seq});
    let note = json!({"method": "process/acknowledge", "params": params});
    client.send(&note.to_string()).await;
}

/// Contiguous events received from a process.
#[derive(Debug)]
struct ReceivedOutput {
    id: &'static str,
    data: Vec<u8>,
    last: u64,
    exited: Value,
    closed: bool,
}

impl ReceivedOutput {
    fn new(id: &'static str) -> Self {
        Self {
            id,
            data: Vec::new(),
            last: 0,
            exited: Value::Null,
            closed: false,
        }
    }

    /// Receives the next event of the process and skips repeated ones.
    async fn next(&mut self, client: &mut Client) {
        loop {
            let message = client.recv().await;
            let params = &message["params"];
            if params["processId"] != self.id || params["seq"].as_u64().unwrap() <= self.last {
                continue;
            }
            assert_eq!(params["seq"], self.last + 1, "sequence number gap");
            self.last += 1;
            match message["method"].as_str().unwrap() {
                "process/output" => self.data.extend(decode(&params["chunk"])),
                "process/exited" => self.exited = params.clone(),
                "process/closed" => self.closed = true,
                other => panic!("unexpected notification {other}"),
            }
            return;
        }
    }

    /// Reads the output after the last event, waiting up to `wait_ms`. Returns the number of bytes.
    async fn read(&mut self, client: &mut Client, wait_ms: u64) -> usize {
        let params = json!({"processId": self.id, "afterSeq": self.last, "waitMs": wait_ms});
        let page = client.call("process/read", params).await;
        let before = self.data.len();
        for chunk in page["chunks"].as_array().unwrap() {
            let seq = chunk["seq"].as_u64().unwrap();
            // The exit has its own sequence number and no chunk.
            let exit = u64::from(page["exited"] == true);
            assert!(
                (self.last + 1..=self.last + 1 + exit).contains(&seq),
                "{seq} follows {}",
                self.last
            );
            self.last = seq;
            self.data.extend(decode(&chunk["chunk"]));
        }
        self.last = page["nextSeq"].as_u64().unwrap() - 1;
        self.closed |= page["closed"] == true;
        self.data.len() - before
    }

    /// Receives events without acknowledging them until the process pauses.
    async fn until_paused(&mut self, client: &mut Client) {
        while self.data.len() < WINDOW {
            self.next(client).await;
        }
        while self.read(client, 500).await > 0 {}
        assert!(self.data.len() < WINDOW + SLACK, "{}", self.data.len());
    }

    /// Receives and acknowledges the rest.
    async fn finish(&mut self, client: &mut Client) {
        acknowledge(client, self.id, self.last).await;
        while !self.closed {
            self.next(client).await;
            acknowledge(client, self.id, self.last).await;
        }
    }
}

async fn check_pause_and_resume(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    initialize(&mut client).await;
    client.start("p", SCRIPT).await;
    let mut received = ReceivedOutput::new("p");
    received.until_paused(&mut client).await;
    // All unacknowledged output can be read again although it was sent.
    let mut reread = ReceivedOutput::new("p");
    reread.read(&mut client, 0).await;
    assert!(reread.data == received.data);
    received.finish(&mut client).await;
    assert!(received.data == written(), "every byte comes once");
    assert_eq!(received.exited["exitCode"], 0);
    client.expect_alive().await;
}

async fn check_disconnect(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let session = initialize(&mut client).await;
    client.start("p", SCRIPT).await;
    let (mut received, mut rounds) = (ReceivedOutput::new("p"), 0);
    let mut random = 7_u64;
    let mut below = |bound: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % bound
    };
    while !received.closed {
        let mut acknowledged = (received.last, received.data.len());
        for _ in 0..below(20) {
            if received.closed {
                break;
            }
            received.next(&mut client).await;
            if below(3) == 0 {
                acknowledge(&mut client, "p", received.last).await;
                acknowledged = (received.last, received.data.len());
            }
        }
        if received.closed {
            break;
        }
        drop(client);
        rounds += 1;
        // A client that lost its unacknowledged output reads it again.
        received.last = acknowledged.0;
        received.data.truncate(acknowledged.1);
        client = resume(&mut server, &session).await;
        received.read(&mut client, 0).await;
        acknowledge(&mut client, "p", received.last).await;
    }
    assert!(rounds >= 5, "{rounds} cuts");
    assert!(received.data == written(), "nothing was lost or came twice");
}

async fn resume(server: &mut Server, session: &str) -> Client {
    let extensions = json!({"extensions": ["acknowledge"]});
    let mut client = sessions::resume_with(server, session, extensions).await;
    client.send(r#"{"method":"initialized"}"#).await;
    client
}

async fn check_malformed(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    initialize(&mut client).await;
    client.start("p", "exec sleep 1000").await;
    for (params, culprit) in [
        (json!({"processId": "p"}), "seq"),
        (json!({"seq": 1}), "processId"),
        (json!({"processId": "p", "seq": -1}), "seq"),
        (json!({"processId": "p", "seq": 1.5}), "seq"),
        (
            json!({"processId": "p".repeat(1025), "seq": 1}),
            "processId",
        ),
        (json!("p"), "expected"),
        (json!(null), "expected"),
    ] {
        let note = json!({"method": "process/acknowledge", "params": params});
        client.send(&note.to_string()).await;
        let answer = client.answer(-1).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(text.contains(culprit), "{text}");
    }
    // Acknowledgements of unknown processes or future events are ignored.
    for (id, seq) in [("nobody", 1), ("p", 0), ("p", u64::MAX), ("p", 3)] {
        acknowledge(&mut client, id, seq).await;
    }
    client.expect_alive().await;
}

async fn paused_process_does_not_block_its_sibling(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    initialize(&mut client).await;
    client.start("p", SCRIPT).await;
    let (mut paused, mut sibling) = (ReceivedOutput::new("p"), ReceivedOutput::new("q"));
    paused.until_paused(&mut client).await;
    client.start("q", SCRIPT).await;
    sibling.finish(&mut client).await;
    assert!(sibling.data == written());
    assert_eq!(
        paused.read(&mut client, 0).await,
        0,
        "process must stay paused"
    );
    paused.finish(&mut client).await;
    assert!(paused.data == written());
}

async fn paused_process_does_not_hit_the_idle_limit(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    initialize(&mut client).await;
    let limits = json!({"limits": {"idleMs": 300}});
    client.start_with(script_params("p", SCRIPT), limits).await;
    let mut received = ReceivedOutput::new("p");
    received.until_paused(&mut client).await;
    received.finish(&mut client).await;
    assert_eq!(received.exited["cause"], "exit");
    assert!(received.data == written());
}

async fn output_of_a_paused_process_survives_terminate(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    initialize(&mut client).await;
    client.start("p", SCRIPT).await;
    let mut received = ReceivedOutput::new("p");
    received.until_paused(&mut client).await;
    let list = client.call("process/list", json!({})).await;
    let pid = u32::try_from(list["processes"][0]["osPid"].as_u64().unwrap()).unwrap();
    settled(|| proc_line(pid, "io", "wchar")).await;
    let wrote: usize = proc_line(pid, "io", "wchar").parse().unwrap();
    client
        .call("process/terminate", json!({"processId": "p"}))
        .await;
    // Longer than the drain timeout for output held open by descendants.
    let exit = received.last + 1;
    let wait = json!({"processId": "p", "afterSeq": exit, "waitMs": 3000});
    assert_eq!(client.call("process/read", wait).await["closed"], false);
    received.finish(&mut client).await;
    assert_eq!(received.exited["cause"], "terminated");
    assert!(
        received.data.len() >= wrote,
        "{} of {wrote}",
        received.data.len()
    );
    assert!(written().starts_with(&received.data));
}

async fn detached_process_is_not_paused(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    initialize(&mut client).await;
    let detached = json!({"detached": true});
    client
        .start_with(script_params("p", SCRIPT), detached)
        .await;
    let wait = json!({"processId": "p", "until": "closed"});
    assert_eq!(client.call("process/wait", wait).await["exitCode"], 0);
}

async fn without_the_extension_nothing_pauses_and_acknowledge_is_refused(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", SCRIPT).await;
    let note = r#"{"method":"process/acknowledge","params":{"processId":"p","seq":1}}"#;
    let text = client.expect_refused(note).await;
    assert!(text.contains("process/acknowledge"), "{text}");
    let mut received = ReceivedOutput::new("p");
    while !received.closed {
        received.next(&mut client).await;
    }
    assert!(received.data == written());
}

//! The extension `acknowledge`: what a client has not taken is kept, and pauses its process.

use serde_json::{Value, json};

use crate::{
    client::{Client, decode, script_params},
    over_every_socket, over_every_transport, over_one_transport,
    pressure::settled,
    server::{Server, Transport, proc_line},
    sessions,
};

mod every_transport {
    use super::*;

    over_every_transport!(a_malformed_acknowledgement_is_refused_and_no_more);

    async fn a_malformed_acknowledgement_is_refused_and_no_more(transport: Transport) {
        super::malformed(transport).await;
    }
}

mod every_socket {
    use super::*;

    over_every_socket!(
        what_nobody_acknowledges_is_paused_and_what_is_acknowledged_goes_on,
        a_cut_connection_loses_nothing_that_was_not_acknowledged,
    );

    async fn what_nobody_acknowledges_is_paused_and_what_is_acknowledged_goes_on(
        transport: Transport,
    ) {
        super::paused_and_on(transport).await;
    }

    async fn a_cut_connection_loses_nothing_that_was_not_acknowledged(transport: Transport) {
        super::cut(transport).await;
    }
}

over_one_transport!(
    a_paused_process_does_not_hold_up_its_sibling,
    a_paused_process_is_not_idle,
    what_a_paused_process_wrote_is_there_although_it_was_terminated,
    a_detached_process_is_not_paused,
    without_the_grant_nothing_is_paused_and_nothing_may_be_acknowledged,
);

/// Writes 8 MB whose every part tells its place.
const SCRIPT: &str = "exec seq 1 1188000";
/// What may be unacknowledged.
const WINDOW: usize = 1 << 20;
/// What may have been on its way when the process was paused.
const SLACK: usize = 512 << 10;

fn written() -> Vec<u8> {
    let lines: Vec<String> = (1..=1_188_000).map(|line| format!("{line}\n")).collect();
    lines.concat().into_bytes()
}

/// Initializes with the grant; returns the session's id.
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

/// What was taken of a process, without holes.
#[derive(Debug)]
struct Taken {
    id: &'static str,
    data: Vec<u8>,
    last: u64,
    exited: Value,
    closed: bool,
}

impl Taken {
    fn new(id: &'static str) -> Self {
        Self {
            id,
            data: Vec::new(),
            last: 0,
            exited: Value::Null,
            closed: false,
        }
    }

    /// Takes the next event of the process. One that was taken before is passed over.
    async fn next(&mut self, client: &mut Client) {
        loop {
            let message = client.recv().await;
            let params = &message["params"];
            if params["processId"] != self.id || params["seq"].as_u64().unwrap() <= self.last {
                continue;
            }
            assert_eq!(params["seq"], self.last + 1, "nothing is missing");
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

    /// Reads what is there behind the last event taken, or comes in some time. Returns how much.
    async fn read(&mut self, client: &mut Client, wait_ms: u64) -> usize {
        let params = json!({"processId": self.id, "afterSeq": self.last, "waitMs": wait_ms});
        let page = client.call("process/read", params).await;
        let before = self.data.len();
        for chunk in page["chunks"].as_array().unwrap() {
            let seq = chunk["seq"].as_u64().unwrap();
            // The exit has a number of its own, and no chunk.
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

    /// Takes what comes without acknowledging it, until nothing more comes.
    async fn until_paused(&mut self, client: &mut Client) {
        while self.data.len() < WINDOW {
            self.next(client).await;
        }
        while self.read(client, 500).await > 0 {}
        assert!(self.data.len() < WINDOW + SLACK, "{}", self.data.len());
    }

    /// Takes and acknowledges the rest.
    async fn finish(&mut self, client: &mut Client) {
        acknowledge(client, self.id, self.last).await;
        while !self.closed {
            self.next(client).await;
            acknowledge(client, self.id, self.last).await;
        }
    }
}

async fn paused_and_on(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    initialize(&mut client).await;
    client.start("p", SCRIPT).await;
    let mut taken = Taken::new("p");
    taken.until_paused(&mut client).await;
    // Everything can be had again, although it was sent.
    let mut again = Taken::new("p");
    again.read(&mut client, 0).await;
    assert!(again.data == taken.data);
    taken.finish(&mut client).await;
    assert!(taken.data == written(), "every byte comes once");
    assert_eq!(taken.exited["exitCode"], 0);
    client.expect_alive().await;
}

async fn cut(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let session = initialize(&mut client).await;
    client.start("p", SCRIPT).await;
    let (mut taken, mut rounds) = (Taken::new("p"), 0);
    let mut random = 7_u64;
    let mut below = |most: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % most
    };
    while !taken.closed {
        let mut acknowledged = (taken.last, taken.data.len());
        for _ in 0..below(20) {
            if taken.closed {
                break;
            }
            taken.next(&mut client).await;
            if below(3) == 0 {
                acknowledge(&mut client, "p", taken.last).await;
                acknowledged = (taken.last, taken.data.len());
            }
        }
        if taken.closed {
            break;
        }
        drop(client);
        rounds += 1;
        // A client that has forgotten what it did not acknowledge reads it again.
        taken.last = acknowledged.0;
        taken.data.truncate(acknowledged.1);
        client = resume(&mut server, &session).await;
        taken.read(&mut client, 0).await;
        acknowledge(&mut client, "p", taken.last).await;
    }
    assert!(rounds >= 5, "{rounds} cuts");
    assert!(taken.data == written(), "nothing was lost or came twice");
}

async fn resume(server: &mut Server, session: &str) -> Client {
    let extensions = json!({"extensions": ["acknowledge"]});
    let mut client = sessions::resume_with(server, session, extensions).await;
    client.send(r#"{"method":"initialized"}"#).await;
    client
}

async fn malformed(transport: Transport) {
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
    // What names nobody, or nothing that happened, is ignored.
    for (id, seq) in [("nobody", 1), ("p", 0), ("p", u64::MAX), ("p", 3)] {
        acknowledge(&mut client, id, seq).await;
    }
    client.expect_alive().await;
}

async fn a_paused_process_does_not_hold_up_its_sibling(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    initialize(&mut client).await;
    client.start("p", SCRIPT).await;
    let (mut paused, mut sibling) = (Taken::new("p"), Taken::new("q"));
    paused.until_paused(&mut client).await;
    client.start("q", SCRIPT).await;
    sibling.finish(&mut client).await;
    assert!(sibling.data == written());
    assert_eq!(paused.read(&mut client, 0).await, 0, "it stays paused");
    paused.finish(&mut client).await;
    assert!(paused.data == written());
}

async fn a_paused_process_is_not_idle(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    initialize(&mut client).await;
    let limits = json!({"limits": {"idleMs": 300}});
    client.start_with(script_params("p", SCRIPT), limits).await;
    let mut taken = Taken::new("p");
    taken.until_paused(&mut client).await;
    taken.finish(&mut client).await;
    assert_eq!(taken.exited["cause"], "exit");
    assert!(taken.data == written());
}

async fn what_a_paused_process_wrote_is_there_although_it_was_terminated(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    initialize(&mut client).await;
    client.start("p", SCRIPT).await;
    let mut taken = Taken::new("p");
    taken.until_paused(&mut client).await;
    let list = client.call("process/list", json!({})).await;
    let pid = u32::try_from(list["processes"][0]["osPid"].as_u64().unwrap()).unwrap();
    settled(|| proc_line(pid, "io", "wchar")).await;
    let wrote: usize = proc_line(pid, "io", "wchar").parse().unwrap();
    client
        .call("process/terminate", json!({"processId": "p"}))
        .await;
    // Longer than output is waited for that somebody else holds open.
    let exit = taken.last + 1;
    let wait = json!({"processId": "p", "afterSeq": exit, "waitMs": 3000});
    assert_eq!(client.call("process/read", wait).await["closed"], false);
    taken.finish(&mut client).await;
    assert_eq!(taken.exited["cause"], "terminated");
    assert!(taken.data.len() >= wrote, "{} of {wrote}", taken.data.len());
    assert!(written().starts_with(&taken.data));
}

async fn a_detached_process_is_not_paused(transport: Transport) {
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

async fn without_the_grant_nothing_is_paused_and_nothing_may_be_acknowledged(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", SCRIPT).await;
    let note = r#"{"method":"process/acknowledge","params":{"processId":"p","seq":1}}"#;
    let text = client.expect_refused(note).await;
    assert!(text.contains("process/acknowledge"), "{text}");
    let mut taken = Taken::new("p");
    while !taken.closed {
        taken.next(&mut client).await;
    }
    assert!(taken.data == written());
}

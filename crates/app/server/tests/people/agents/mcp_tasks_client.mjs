// Drives `exec-server mcp` with the official Tasks package for TypeScript, and asserts what it says.
//
//     node mcp_tasks_client.mjs MODULES WORKSPACE stdio PROGRAM ARGUMENT...
//     node mcp_tasks_client.mjs MODULES WORKSPACE http URL
//
// MODULES is the node_modules that `scripts/mcp-servers` installs. Every case prints `ok NAME`.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, workspace, kind, ...server] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(join(modules, "@modelcontextprotocol", path)).href);
const { Client, StreamableHTTPClientTransport } = await load("client/dist/index.mjs");
const { StdioClientTransport } = await load("client/dist/stdio.mjs");
const { createTaskSessionFromClient, resultFromTaskOutcome } = await load(
  "ext-tasks/dist/client/index.js",
);

const protocolVersion = "2026-07-28";
const clientInfo = { name: "tasks-test", version: "1" };
const clientCapabilities = { extensions: { "io.modelcontextprotocol/tasks": {} } };

// Sends requests beside those of the client: its codecs know no tasks.
class RawRequests {
  #pending = new Map();
  #last = 0;

  constructor(transport) {
    this.transport = transport;
    const handle = transport.onmessage;
    transport.onmessage = (message, extra) => {
      const respond = this.#pending.get(message.id);
      if (respond === undefined) return handle?.(message, extra);
      this.#pending.delete(message.id);
      respond(
        message.error === undefined
          ? { kind: "result", result: message.result }
          : { kind: "error", error: message.error },
      );
    };
  }

  dispatch = (request) => {
    const id = `raw-${++this.#last}`;
    const response = new Promise((respond) => this.#pending.set(id, respond));
    const name = request.params?.name ?? request.params?.taskId;
    const headers = { "Mcp-Method": request.method, "Mcp-Name": name };
    const sent = this.transport.send({ jsonrpc: "2.0", id, ...request }, { headers });
    return Promise.race([response, sent.then(() => response)]);
  };
}

// Opens a connection with a session for tasks.
async function connect() {
  const transport =
    kind === "stdio"
      ? new StdioClientTransport({
          command: server[0],
          args: server.slice(1),
          cwd: workspace,
          env: process.env,
        })
      : new StreamableHTTPClientTransport(new URL(server[0]));
  const client = new Client(clientInfo, {
    capabilities: clientCapabilities,
    versionNegotiation: { mode: { pin: protocolVersion } },
  });
  await client.connect(transport);
  assert.equal(client.getProtocolEra(), "modern");
  const session = createTaskSessionFromClient(client, {
    endpointId: "exec-server-test",
    rawDispatch: new RawRequests(transport).dispatch,
    v2RequestFraming: { protocolVersion, clientInfo, clientCapabilities },
  });
  return { client, session };
}

let { client, session } = await connect();
let execution = await session.callTool("exec_command", { cmd: "echo hello; exit 3" });
assert.equal(execution.kind, "task");
let { outcome } = await execution.settle();
let answer = resultFromTaskOutcome(outcome).structuredContent;
assert.deepEqual([answer.output, answer.exit_code], ["hello\n", 3]);
console.log("ok command_is_a_task");

const list = await session.callTool("list_processes", {});
assert.equal(list.kind, "immediate");
const listed = resultFromTaskOutcome((await list.settle()).outcome).structuredContent;
assert.deepEqual(listed.processes, []);
console.log("ok other_tools_answer_at_once");

execution = await session.callTool("exec_command", { cmd: "exec sleep 600" });
await execution.cancel();
({ outcome } = await execution.settle());
assert.equal(outcome.status, "cancelled");
console.log("ok task_is_cancelled");

const cmd = "echo before; while [ ! -e go ]; do sleep 0.05; done; echo after";
execution = await session.callTool("exec_command", { cmd });
let reference;
await execution.handoff((handed) => {
  reference = JSON.stringify(handed);
});
// Closing the session would cancel the task, even after it was handed over.
await client.close();
({ client, session } = await connect());
execution = await session.resumeTask(JSON.parse(reference));
writeFileSync(join(workspace, "go"), "");
({ outcome } = await execution.settle());
answer = resultFromTaskOutcome(outcome).structuredContent;
assert.deepEqual([answer.output, answer.exit_code], ["before\nafter\n", 0]);
console.log("ok task_is_resumed_over_another_connection");

await session.close();
await client.close();
console.log("done");

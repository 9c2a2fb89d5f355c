/** Servers that are older: a scripted one without any extension of ours. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type WebSocket, WebSocketServer } from "ws";

import {
  connect,
  ConnectError,
  type Environment,
  LimitError,
  OutputLostError,
  type Process,
  ProtocolError,
  spawn,
  UnsupportedError,
} from "../src/node.js";

interface Request {
  id?: number;
  method: string;
  params: Record<string, unknown>;
}
type Reply = (message: object) => void;

/** Listens with the message limit of stock servers. */
async function listen(): Promise<WebSocketServer> {
  const server = new WebSocketServer({ host: "127.0.0.1", port: 0, maxPayload: 16 << 20 });
  await new Promise((resolve) => server.once("listening", resolve));
  return server;
}

/** A server that answers as a script says. */
class ScriptedServer {
  readonly url: string;
  readonly requests: Request[] = [];
  sockets: WebSocket[] = [];
  #server: WebSocketServer;

  private constructor(server: WebSocketServer, answer: (request: Request, reply: Reply) => void) {
    this.#server = server;
    this.url = `ws://127.0.0.1:${(server.address() as { port: number }).port}`;
    server.on("connection", (socket) => {
      this.sockets.push(socket);
      socket.on("error", () => {});
      const reply: Reply = (message) => socket.send(JSON.stringify(message));
      socket.on("message", (data) => {
        const request = JSON.parse(String(data)) as Request;
        this.requests.push(request);
        if (request.method === "initialize") {
          reply({ id: request.id, result: { sessionId: "s" } });
        } else if (request.method === "environment/info") {
          reply({ id: request.id, result: { shell: { name: "sh", path: "/bin/sh" } } });
        } else if (request.method !== "initialized") {
          answer(request, reply);
        }
      });
    });
  }

  static async start(answer: (request: Request, reply: Reply) => void): Promise<ScriptedServer> {
    return new ScriptedServer(await listen(), answer);
  }

  async stop(): Promise<void> {
    for (const socket of this.sockets) {
      socket.terminate();
    }
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

const chunk = (text: string): string => Buffer.from(text).toString("base64");

test("events of a stock server are put in order, even ahead of the answer", async () => {
  const server = await ScriptedServer.start(({ id, method, params }, reply) => {
    assert.equal(method, "process/start");
    assert.equal(params["limits"], undefined);
    const { processId } = params;
    const output = (seq: number, text: string): void =>
      reply({ method: "process/output", params: { processId, seq, stream: "stdout", chunk: chunk(text) } });
    output(2, "two ");
    output(1, "one ");
    reply({ id, result: { processId } });
    reply({ method: "process/closed", params: { processId, seq: 5 } });
    reply({ method: "process/exited", params: { processId, seq: 3, exitCode: 4 } });
    output(2, "two ");
    output(4, "four");
    reply({ method: "something/new", params: {} });
  });
  const env = await connect(server.url);
  const done = await env.run(["x"]);
  assert.deepEqual([done.stdout, done.exitCode, done.signal], ["one two four", 4, null]);
  assert.equal(env.cwd, "/");
  await env.close();
  await server.stop();
});

test("features that a stock server lacks are refused before anything is sent", async () => {
  const server = await ScriptedServer.start(() => assert.fail("nothing is sent"));
  const env = await connect(server.url);
  const refused = [
    () => env.run(["x"], { input: "x" }),
    () => env.run(["x"], { limits: { wallMs: 1 } }),
    () => env.run(["x"], { pty: { rows: 1, cols: 1 } }),
    () => env.spawn(["x"], { detached: true }),
    () => env.spawn(["x"], { durable: true }),
    () => env.processes(),
    () => env.attach("x"),
    () => env.history(),
    () => env.fs.writeFile("/x", "x", { atomic: true }),
    () => env.fs.stat("/x", { details: true }),
    () => env.openTunnel({ port: 1 }),
  ];
  for (const call of refused) {
    await assert.rejects(call, UnsupportedError);
  }
  await env.close();
  await server.stop();
});

test("output that a stock server evicted fails its process only", async () => {
  let starts = 0;
  const server = await ScriptedServer.start(({ id, method, params }, reply) => {
    const { processId } = params;
    const result = (result: object): void => reply({ id, result });
    if (method === "process/start") {
      starts += 1;
      result({ processId });
      reply({
        method: "process/output",
        params: { processId, seq: 1, stream: "stdout", chunk: chunk(`${starts}`) },
      });
    } else if (method === "process/read") {
      const isFirst = String(processId).endsWith("-1");
      // Of the first process, event 2 is gone.
      const chunks = [{ seq: isFirst ? 3 : 2, stream: "stdout", chunk: chunk("end") }];
      const nextSeq = isFirst ? 6 : 5;
      result({ chunks, nextSeq, exited: true, exitCode: 0, closed: true });
    } else {
      result({ running: false });
    }
  });
  const env = await connect(server.url);
  const [lost, kept] = [await env.spawn(["a"]), await env.spawn(["b"])];
  const [lostReader, keptReader] = [lost.stdout.getReader(), kept.stdout.getReader()];
  await lostReader.read();
  await keptReader.read();
  server.sockets[0]?.terminate();
  await assert.rejects(lost.wait(), (error) => {
    assert.ok(error instanceof OutputLostError);
    assert.deepEqual([error.first, error.last], [2, 2]);
    return true;
  });
  assert.equal(Buffer.from((await keptReader.read()).value ?? []).toString(), "end");
  assert.equal((await kept.wait()).exitCode, 0);
  await env.close();
  await server.stop();
});

async function assertUnreadOutputPauses(wait: (process: Process) => void): Promise<void> {
  const data = chunk("x".repeat(8192));
  let sent = 0;
  let sender: WebSocket | undefined;
  const server = await ScriptedServer.start(({ id, params }, reply) => {
    const { processId } = params;
    reply({ id, result: { processId, running: false } });
    sender = server.sockets[0];
    const more = (): void => {
      while (sender?.readyState === 1 && sent < 10_000 && sender.bufferedAmount < 1 << 20) {
        sent += 1;
        reply({ method: "process/output", params: { processId, seq: sent, stream: "stdout", chunk: data } });
      }
      if (sent < 10_000 && sender?.readyState === 1) {
        setImmediate(more);
      }
    };
    more();
  });
  const env = await connect(server.url);
  const process = await env.spawn(["x"]);
  wait(process);
  // What the client and the sockets take is far below what is produced.
  let last = -1;
  for (let calm = 0; calm < 5; calm += 1) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    if (sent !== last) {
      [last, calm] = [sent, 0];
    }
  }
  assert.ok(sent * 8192 < 32 << 20, `${sent} chunks were sent`);
  const reader = process.stdout.getReader();
  let read = 0;
  while (read < 10_000 * 8192) {
    read += (await reader.read()).value?.byteLength ?? 0;
  }
  await env.close();
  await server.stop();
}

test("output that is not read pauses the connection to a stock server", async () => {
  await assertUnreadOutputPauses(() => {});
});

test("wait for a process does not read its output from a stock server", async () => {
  await assertUnreadOutputPauses((process) => {
    process.wait().catch(() => {});
    process.exited.catch(() => {});
  });
});

/** Waits for events of the command `quiet`. */
const WAITS: Record<string, (env: Environment) => Promise<void>> = {
  run: async (env) => {
    assert.equal((await env.run(["quiet"])).stdout, "x");
  },
  wait: async (env) => {
    assert.equal((await (await env.spawn(["quiet"])).wait()).exitCode, 0);
  },
  "wait with a signal": async (env) => {
    const process = await env.spawn(["quiet"]);
    const { signal } = new AbortController();
    assert.equal((await process.wait({ signal })).exitCode, 0);
  },
  exited: async (env) => {
    assert.equal((await (await env.spawn(["quiet"])).exited).exitCode, 0);
  },
  "a pending read": async (env) => {
    const { value } = await (await env.spawn(["quiet"])).stdout.getReader().read();
    assert.equal(Buffer.from(value ?? []).toString(), "x");
  },
  "the events of a child process": async (env) => {
    const child = spawn(env, "quiet");
    await new Promise((resolve, reject) => child.on("close", resolve).on("error", reject));
    assert.equal(child.exitCode, 0);
  },
};

for (const [name, wait] of Object.entries(WAITS)) {
  test(`unread output of a stock server does not block ${name}`, { timeout: 20_000 }, async () => {
    // More than the client keeps of a process whose output it can read again.
    const data = chunk("x".repeat(64 << 10));
    const floodChunks = 192;
    const server = await ScriptedServer.start(({ id, method, params }, reply) => {
      const { processId } = params;
      reply({ id, result: { processId, running: false } });
      if (method !== "process/start") {
        return;
      }
      const send = (event: string, params: object): void =>
        reply({ method: `process/${event}`, params });
      const starts = server.requests.filter((request) => request.method === method);
      const flood = starts[0]?.params["processId"];
      const firstSeq = flood === processId ? 1 : floodChunks / 2 + 1;
      for (let seq = firstSeq; seq < firstSeq + floodChunks / 2; seq += 1) {
        send("output", { processId: flood, seq, stream: "stdout", chunk: data });
      }
      if (flood !== processId) {
        send("output", { processId, seq: 1, stream: "stdout", chunk: chunk("x") });
        send("exited", { processId, seq: 2, exitCode: 0 });
        send("closed", { processId, seq: 3 });
      }
    });
    const env = await connect(server.url);
    const flood = await env.spawn(["flood"]);
    await wait(env);
    const reader = flood.stdout.getReader();
    for (let count = 0; count < floodChunks; count += 1) {
      assert.equal((await reader.read()).value?.byteLength, 64 << 10);
    }
    await env.close();
    await server.stop();
  });
}

test("server that violates the protocol is a typed error", async () => {
  const garbage = await ScriptedServer.start(({ id, method }, reply) => {
    if (method === "environment/status") {
      garbage.sockets.at(-1)?.send("{ not json");
    } else {
      reply({ id, result: {} });
    }
  });
  const env = await connect(garbage.url, { reconnectTimeoutMs: 200 });
  await assert.rejects(env.request("environment/status", {}), /malformed message|connection broke/);
  assert.deepEqual(await env.request("environment/x"), {});
  await env.close();
  await garbage.stop();
  const wrong = await listen();
  wrong.on("connection", (socket) => socket.send(JSON.stringify({ id: 0, result: {} })));
  const url = `ws://127.0.0.1:${(wrong.address() as { port: number }).port}`;
  await assert.rejects(connect(url), (error) => {
    assert.ok(error instanceof ConnectError && !(error instanceof ProtocolError));
    assert.match(error.message, /is not an exec-server/);
    return true;
  });
  wrong.clients.forEach((client) => client.terminate());
  await new Promise((resolve) => wrong.close(resolve));
});

test("call whose answers are malformed fails after three connections", async () => {
  const server = await ScriptedServer.start(({ id, method, params }, reply) => {
    if (method === "process/start") {
      reply({ id, result: { processId: params["processId"] } });
    } else if (method === "process/read" || method === "test/poison") {
      server.sockets.at(-1)?.send("{ not json");
    } else {
      reply({ id, result: {} });
    }
  });
  const count = (method: string): number =>
    server.requests.filter((request) => request.method === method).length;
  const env = await connect(server.url);
  await assert.rejects(env.request("test/poison", {}, { retry: true }), ProtocolError);
  assert.equal(count("test/poison"), 3);
  const process = await env.spawn(["x"]);
  server.sockets.at(-1)?.terminate();
  await assert.rejects(process.wait(), ProtocolError);
  assert.equal(count("process/read"), 3);
  assert.deepEqual(await env.request("environment/x"), {});
  await env.close();
  await server.stop();
});

test("files that a stock server does not accept in one message are written by blocks", async () => {
  let bytes = 0;
  const server = await ScriptedServer.start(({ id, method, params }, reply) => {
    assert.notEqual(method, "fs/writeFile");
    bytes += Buffer.from(String(params["chunk"] ?? ""), "base64").length;
    reply({ id, result: {} });
  });
  const env = await connect(server.url);
  await env.fs.writeFile("/large", new Uint8Array(13 << 20));
  assert.equal(bytes, 13 << 20);
  const whole = env.fs.writeFile("/large", new Uint8Array(13 << 20), { followSymlinks: false });
  await assert.rejects(whole, LimitError);
  await assert.rejects(env.run(["x".repeat(17 << 20)]), LimitError);
  assert.equal(env.state, "connected");
  await env.close();
  await server.stop();
});

test("server that does not answer the handshake is given up", async () => {
  const silent = await listen();
  const url = `ws://127.0.0.1:${(silent.address() as { port: number }).port}`;
  await assert.rejects(connect(url, { connectTimeoutMs: 150 }), /did not answer within 150 ms/);
  const controller = new AbortController();
  const connecting = connect(url, { signal: controller.signal });
  controller.abort();
  await assert.rejects(connecting, { name: "AbortError" });
  silent.clients.forEach((client) => client.terminate());
  await new Promise((resolve) => silent.close(resolve));
});

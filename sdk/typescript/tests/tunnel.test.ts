/** TCP connections of the environment. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, connect as connectSocket, createServer, type Server, type Socket } from "node:net";
import { after, before, test } from "node:test";

import {
  ClosedError,
  connect,
  type Environment,
  forwardPort,
  RemoteError,
  type Tunnel,
  TunnelClosedError,
} from "../src/node.js";
import { CuttingProxy, startServer, type TestServer, until } from "./support.js";

let server: TestServer;
let proxy: CuttingProxy;
let env: Environment;

before(async () => {
  server = await startServer();
  proxy = await CuttingProxy.start(server.url);
  env = await connect(proxy.url);
});

after(async () => {
  for (const listener of listeners) {
    listener.close();
  }
  for (const socket of sockets) {
    socket.destroy();
  }
  await env.close();
  await proxy.stop();
  await server.stop();
});

const listeners: Server[] = [];
const sockets = new Set<Socket>();

/** Listens on a free port of the host, which is this machine. */
async function listenOn(serve: (socket: Socket) => void): Promise<{ port: number; close(): void }> {
  const listener = createServer({ allowHalfOpen: true }, (socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.on("close", () => sockets.delete(socket));
    serve(socket);
  });
  listeners.push(listener);
  listener.listen(0, "127.0.0.1");
  await once(listener, "listening");
  return { port: (listener.address() as AddressInfo).port, close: () => listener.close() };
}

async function readAll(tunnel: Tunnel): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of tunnel.readable) {
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

test("tunnel carries both directions and keeps half-closes", async () => {
  const host = await listenOn((socket) => {
    const chunks: Buffer[] = [];
    socket.on("data", (chunk) => chunks.push(chunk));
    // Answers after the end of the request.
    socket.on("end", () => socket.end(`got ${Buffer.concat(chunks).toString()}`));
  });
  const tunnel = await env.openTunnel({ port: host.port });
  const writer = tunnel.writable.getWriter();
  await writer.write("hello");
  const [, answer] = await Promise.all([writer.close(), readAll(tunnel)]);
  assert.equal(answer.toString(), "got hello");
  await tunnel.closed;
  host.close();
});

test("tunnel to a closed port fails and others go on", async () => {
  const host = await listenOn((socket) => socket.end("x"));
  const { port } = host;
  const open = await env.openTunnel({ port });
  assert.equal((await readAll(open)).toString(), "x");
  open.close();
  await assert.rejects(open.closed, ClosedError);
  host.close();
  await assert.rejects(env.openTunnel({ port: 1 }), RemoteError);
  const aborted = env.openTunnel({ port, signal: AbortSignal.abort() });
  await assert.rejects(aborted, { name: "AbortError" });
});

test("reset connection is a typed error on both streams", async () => {
  const host = await listenOn((socket) => {
    socket.once("data", () => socket.resetAndDestroy());
  });
  const tunnel = await env.openTunnel({ port: host.port });
  const writer = tunnel.writable.getWriter();
  await writer.write("x");
  await assert.rejects(tunnel.closed, TunnelClosedError);
  await assert.rejects(readAll(tunnel), TunnelClosedError);
  await assert.rejects(writer.write("y"), TunnelClosedError);
  host.close();
});

test("tunnels lose and repeat nothing in 40 cuts", { timeout: 60_000 }, async () => {
  const host = await listenOn((socket) => socket.pipe(socket));
  const size = 8 << 20;
  const sent = new Uint8Array(size);
  for (let index = 0; index < size; index += 1) {
    sent[index] = (index * 31 + (index >> 9)) & 0xff;
  }
  const cuts = proxy.cuts + 40;
  let done = false;
  const tunnels = await Promise.all([1, 2].map(() => env.openTunnel({ port: host.port })));
  const work = tunnels.map(async (tunnel) => {
    const writer = tunnel.writable.getWriter();
    const write = async (): Promise<void> => {
      for (let offset = 0; offset < size; offset += 100_000) {
        await writer.write(sent.subarray(offset, offset + 100_000));
      }
      await writer.close();
    };
    const [received] = await Promise.all([readAll(tunnel), write()]);
    assert.ok(received.equals(sent), `${received.length} bytes came back`);
    await tunnel.closed;
  });
  const cutting = (async () => {
    while (!done && proxy.cuts < cuts) {
      await until(() => env.state === "connected", "the client connects again");
      await new Promise((resolve) => setTimeout(resolve, proxy.cuts % 20));
      proxy.cut();
    }
  })();
  await Promise.all(work);
  done = true;
  await cutting;
  host.close();
});

test("listener accepts connections of the host until its loop is left", { timeout: 20_000 }, async () => {
  const listener = await env.listen({ port: 0 });
  const client = connectSocket(listener.port, "127.0.0.1");
  client.setEncoding("utf8").write("question");
  let answer = "";
  client.on("data", (text: string) => (answer += text));
  const answered = once(client, "end");
  for await (const tunnel of listener) {
    const { value } = await tunnel.readable.getReader().read();
    assert.equal(Buffer.from(value ?? []).toString(), "question");
    const writer = tunnel.writable.getWriter();
    await writer.write("answer");
    await writer.close();
    break;
  }
  await answered;
  assert.equal(answer, "answer");
  client.destroy();
  await refused(listener.port);
});

/** Waits, bounded by the test, until nothing listens on a port. */
async function refused(port: number): Promise<void> {
  for (;;) {
    const probe = connectSocket(port, "127.0.0.1");
    const isRefused = await new Promise((resolve) => {
      probe.once("connect", () => resolve(false));
      probe.once("error", () => resolve(true));
    });
    probe.destroy();
    if (isRefused === true) {
      return;
    }
  }
}

test("tunnel and listener that are closed between connections end on the server", { timeout: 20_000 }, async () => {
  const accepted: Socket[] = [];
  let ended = false;
  const host = await listenOn((socket) => {
    accepted.push(socket.resume());
    socket.once("end", () => (ended = true)).once("close", () => (ended = true));
  });
  const tunnel = await env.openTunnel({ port: host.port });
  const listener = await env.listen({ port: 0 });
  await until(() => accepted.length === 1, "the tunnel is connected");
  proxy.refusing = true;
  proxy.cut();
  await until(() => env.state === "reconnecting", "the client notices the cut");
  tunnel.close();
  listener.close();
  proxy.refusing = false;
  await until(() => ended, "the tunnel ends");
  await refused(listener.port);
  host.close();
});

test("slow reader of a tunnel holds back its sender only", async () => {
  let written = 0;
  const host = await listenOn((socket) => {
    const block = Buffer.alloc(65536);
    const more = (): void => {
      while (socket.writable && written < 64 << 20) {
        written += block.length;
        if (!socket.write(block)) {
          socket.once("drain", more);
          return;
        }
      }
      socket.end();
    };
    more();
  });
  const tunnel = await env.openTunnel({ port: host.port });
  let last = -1;
  for (let calm = 0; calm < 4; calm += 1) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    if (written !== last) {
      [last, calm] = [written, 0];
    }
  }
  assert.ok(written < 32 << 20, `${written} bytes were written`);
  assert.equal((await env.run(["echo", "on"])).stdout, "on\n");
  assert.equal((await readAll(tunnel)).length, 64 << 20);
  tunnel.close();
  host.close();
});

test("forwarded port joins sockets with the environment", async () => {
  const host = await listenOn((socket) => socket.pipe(socket));
  const forward = await forwardPort(env, { port: host.port });
  const clients = Array.from({ length: 20 }, async (_, index) => {
    const client = connectSocket(forward.port, "127.0.0.1");
    client.setEncoding("utf8").end(`client ${index}`);
    let text = "";
    for await (const chunk of client) {
      text += chunk as string;
    }
    assert.equal(text, `client ${index}`);
  });
  await Promise.all(clients);
  const ports = await env.ports();
  assert.ok(ports.some(({ port }) => port === host.port));
  await forward.close();
  host.close();
});

test("forwarded port and its connections end with the environment", { timeout: 20_000 }, async () => {
  const host = await listenOn((socket) => socket.pipe(socket));
  const other = await connect(server.url);
  const forward = await forwardPort(other, { port: host.port });
  const client = connectSocket(forward.port, "127.0.0.1");
  client.on("error", () => {}).write("x");
  await once(client, "data");
  const closed = once(client, "close");
  await other.close();
  await closed;
  await refused(forward.port);
  await forward.close();
  await assert.rejects(forwardPort(other, { port: host.port }), ClosedError);
  host.close();
});

/** What a broken connection must not do: lose or repeat a byte, or leave a call without an end. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { join } from "node:path";
import { PassThrough } from "node:stream";
import { pipeline } from "node:stream/promises";
import { after, before, test } from "node:test";

import {
  connect,
  ConnectionLostError,
  type Environment,
  InterruptedError,
  SessionLostError,
  spawn,
} from "../src/node.js";
import { CuttingProxy, startServer, temporaryDirectory, type TestServer, until } from "./support.js";

const CUTS = 200;
/** Input of `cat`, in blocks of which each is different. */
const BLOCK = 32 << 10;
/** Input that is not echoed yet. */
const MAX_AHEAD = 8 << 20;

let server: TestServer;

before(async () => {
  server = await startServer();
});

after(async () => {
  await server.stop();
});

/** Random delays that are the same in every run. */
function* delays(): Generator<number> {
  let state = 12345;
  for (;;) {
    state = (state * 1103515245 + 12345) & 0x7fffffff;
    yield (state >> 8) % 50;
  }
}

/** What the load of the cuts has done. */
interface Progress {
  lines: number;
  echoed: number;
  runs: number;
}

async function cutRepeatedly(proxy: CuttingProxy, env: Environment, progress: Progress): Promise<void> {
  const delay = delays();
  while (proxy.cuts < CUTS) {
    const before = { ...progress };
    // Most cuts hit a connection at work, some a handshake, and each part of the load gets on.
    const isReady = (): boolean => {
      switch (proxy.cuts % 10) {
        case 0:
          return proxy.connections > 0;
        case 3:
          return progress.runs > before.runs;
        case 6:
          return progress.echoed > before.echoed;
        case 9:
          return progress.lines > before.lines;
        default:
          return env.state === "connected";
      }
    };
    await until(isReady, "the load gets on");
    await new Promise((resolve) => setTimeout(resolve, delay.next().value as number));
    proxy.cut();
  }
  await until(() => env.state === "connected", "the client is connected after the last cut");
}

/** Checks that output counts from 1 without a gap; returns the last number. */
async function readCount(stream: ReadableStream<Uint8Array>, progress: Progress): Promise<number> {
  let last = 0;
  let rest = "";
  for await (const chunk of stream) {
    const lines = (rest + Buffer.from(chunk).toString("latin1")).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      last += 1;
      if (line !== String(last)) {
        throw new Error(`line ${last} is ${JSON.stringify(line)}`);
      }
    }
    progress.lines = last;
  }
  return last;
}

function block(index: number): Uint8Array {
  const bytes = new Uint8Array(BLOCK).fill(index % 251);
  new DataView(bytes.buffer).setUint32(0, index);
  return bytes;
}

test("200 cuts under load lose and repeat nothing", { timeout: 60_000 }, async () => {
  const proxy = await CuttingProxy.start(server.url);
  const env = await connect(proxy.url);
  try {
    let done = false;
    const progress: Progress = { lines: 0, echoed: 0, runs: 0 };
    const cutting = cutRepeatedly(proxy, env, progress).finally(() => {
      done = true;
    });
    const counter = await startAgain(() => env.spawn(["seq", "1", "1000000000"], { stdin: "ignore" }));
    const counted = readCount(counter.stdout, progress);
    const cat = await startAgain(() => env.spawn(["cat"]));
    const stdin = cat.stdin;
    assert.ok(stdin);
    const echoed = (async () => {
      let [bytes, index, rest] = [0, 0, Buffer.alloc(0)];
      for await (const chunk of cat.stdout) {
        rest = Buffer.concat([rest, chunk]);
        bytes += chunk.byteLength;
        progress.echoed = bytes;
        while (rest.length >= BLOCK) {
          assert.ok(rest.subarray(0, BLOCK).equals(block(index)), `block ${index} is wrong`);
          rest = rest.subarray(BLOCK);
          index += 1;
        }
      }
      return bytes;
    })();
    const written = (async () => {
      let index = 0;
      while (!done) {
        await stdin.write(block(index));
        index += 1;
        while (!done && index * BLOCK - progress.echoed > MAX_AHEAD) {
          await new Promise((resolve) => setTimeout(resolve, 5));
        }
      }
      await stdin.end();
      return index * BLOCK;
    })();
    let interrupted = 0;
    const runs = async (worker: number): Promise<number> => {
      let count = 0;
      while (!done) {
        try {
          const text = `worker ${worker} run ${count}\n`;
          const argv = ["sh", "-c", 'printf "%s" "$1"; cat >&2', "sh", text];
          const result = await env.run(argv, { input: text });
          assert.equal(result.stdout, text);
          assert.equal(result.stderr, text);
          assert.equal(result.exitCode, 0);
          count += 1;
          progress.runs += 1;
        } catch (error) {
          // Only a start cannot be repeated.
          if (!(error instanceof InterruptedError) || error.method !== "process/start") {
            throw error;
          }
          interrupted += 1;
        }
      }
      return count;
    };
    const work = Promise.all([counted, echoed, written, runs(1), runs(2)]);
    // The counter goes on until it is ended.
    const ended = cutting.then(() => counter.terminate());
    const [lines, bytesBack, bytesOut, first, second] = await work;
    await ended;
    assert.equal(bytesBack, bytesOut);
    assert.ok(lines > 1000, `${lines} lines`);
    assert.ok(bytesOut > 0 && first + second > 0, "everything makes progress");
    assert.equal((await counter.wait()).cause, "terminated");
    assert.equal((await cat.wait()).exitCode, 0);
    console.log(
      `${proxy.cuts} cuts: ${lines} lines, ${bytesOut} bytes through cat, ` +
        `${first + second} runs, ${interrupted} starts interrupted`,
    );
  } finally {
    await env.close();
    await proxy.stop();
  }
});

/** A start whose answer was lost is not repeated by the client, but may be by its caller. */
async function startAgain<T>(start: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await start();
    } catch (error) {
      if (!(error instanceof InterruptedError)) {
        throw error;
      }
    }
  }
}

test("streams of files continue after cuts", { timeout: 60_000 }, async () => {
  const proxy = await CuttingProxy.start(server.url);
  const env = await connect(proxy.url);
  const path = join(temporaryDirectory(), "file");
  try {
    const writer = env.fs.writeStream(path).getWriter();
    const expected: Uint8Array[] = [];
    for (let index = 0; index < 64; index += 1) {
      const bytes = Buffer.concat(Array.from({ length: 8 }, (_, part) => block(index * 8 + part)));
      expected.push(bytes);
      await writer.write(bytes);
      if (index % 8 === 7) {
        proxy.cut();
      }
    }
    await writer.close();
    let index = 0;
    let rest = Buffer.alloc(0);
    for await (const chunk of env.fs.readStream(path)) {
      rest = Buffer.concat([rest, chunk]);
      for (let next = expected[index]; next && rest.length >= next.length; next = expected[index]) {
        assert.ok(rest.subarray(0, next.length).equals(next), `part ${index}`);
        rest = rest.subarray(next.length);
        index += 1;
      }
      proxy.cut();
    }
    assert.equal(index, 64);
    assert.equal(rest.length, 0);
  } finally {
    await env.close();
    await proxy.stop();
  }
});

test("slow reader pauses its process and memory stays bounded", { timeout: 60_000 }, async () => {
  const proxy = await CuttingProxy.start(server.url);
  const env = await connect(proxy.url);
  try {
    const count = ["sh", "-c", 'i=0; while :; do head -c 65536 /dev/zero; i=$((i+1)); echo $i >&2; done'];
    const process = await env.spawn(count, { stdin: "ignore" });
    const errors = process.stderr.getReader();
    let written = 0;
    let quiet = false;
    const follow = (async () => {
      for (;;) {
        const { done, value } = await errors.read();
        if (done) {
          return;
        }
        quiet = false;
        written = Number(Buffer.from(value).toString().trim().split("\n").at(-1));
      }
    })();
    // Nobody reads stdout: the process must stop writing, also across a cut.
    for (let calm = 0; calm < 3; calm += 1) {
      quiet = true;
      await new Promise((resolve) => setTimeout(resolve, 150));
      if (!quiet) {
        calm = -1;
      }
      if (calm === 1) {
        proxy.cut();
        await until(() => env.state === "connected", "the client is connected again");
      }
    }
    assert.ok(written * 65536 < 8 << 20, `${written} blocks were written`);
    // Other processes of the connection are not affected.
    assert.equal((await env.run(["echo", "on"])).stdout, "on\n");
    const reader = process.stdout.getReader();
    let read = 0;
    while (read < 16 << 20) {
      const { value } = await reader.read();
      read += value?.byteLength ?? 0;
    }
    await process.terminate();
    await reader.cancel();
    await follow;
  } finally {
    await env.close();
    await proxy.stop();
  }
});

test("output that is taken between connections is acknowledged on the next one", { timeout: 20_000 }, async () => {
  const proxy = await CuttingProxy.start(server.url);
  const env = await connect(proxy.url);
  try {
    const size = 8 << 20;
    const argv = ["head", "-c", String(size), "/dev/zero"];
    const { process, events } = await env.start(argv, { stdin: "ignore" });
    // The process waits for acknowledgements, and those for the reader.
    for (let before = -1; before !== events.stdout.received || before < 3 << 19; ) {
      before = events.stdout.received;
      await env.run(["sleep", "0.1"]);
    }
    proxy.refusing = true;
    proxy.cut();
    await until(() => env.state === "reconnecting", "the client notices the cut");
    const reader = process.stdout.getReader();
    let read = 0;
    while (read < events.stdout.received) {
      read += (await reader.read()).value?.byteLength ?? 0;
    }
    proxy.refusing = false;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        break;
      }
      read += value.byteLength;
    }
    assert.equal(read, size);
  } finally {
    await env.close();
    await proxy.stop();
  }
});

for (const detached of [false, true]) {
  const kind = detached ? "detached durable" : "durable";
  test(`slow reader of a ${kind} process gets everything with bounded memory`, async () => {
    const state = join(temporaryDirectory(), "state");
    const own = await startServer(["--state-dir", state]);
    const env = await connect(own.url);
    try {
      // More than a client keeps, and the server does not pause it.
      const argv = ["seq", "1", "4000000"];
      const options = { durable: true, detached, stdin: "ignore" } as const;
      const { process, events } = await env.start(argv, options);
      const { osPid } = (await env.processes())[0] ?? {};
      assert.ok(osPid);
      for (;;) {
        const [entry] = await env.processes();
        if (entry?.running !== true) {
          break;
        }
      }
      let most = 0;
      let [last, rest] = [0, ""];
      const decoder = new TextDecoder();
      for await (const chunk of process.stdout) {
        most = Math.max(most, events.stdout.received - events.stdout.taken);
        const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
        rest = lines.pop() ?? "";
        for (const line of lines) {
          last += 1;
          assert.ok(line === String(last), `line ${last} is ${line}`);
        }
      }
      assert.equal(last, 4_000_000);
      assert.equal(process.missedEvents, 0);
      assert.equal((await process.wait()).exitCode, 0);
      assert.ok(most < 20 << 20, `${most} bytes waited`);
    } finally {
      await env.close();
      await own.stop();
    }
  });
}

test("end of the session fails its processes and the next call opens a new one", async () => {
  const own = await startServer(["--session-ttl", "0"]);
  const proxy = await CuttingProxy.start(own.url);
  const env = await connect(proxy.url);
  try {
    const process = await env.spawn(["sleep", "60"]);
    const waiting = process.wait();
    const child = spawn(env, "sleep", ["60"]);
    const failed = once(child, "error");
    const piped = pipeline(child.stdout ?? [], new PassThrough().resume());
    await once(child, "spawn");
    proxy.cut();
    await assert.rejects(waiting, SessionLostError);
    await assert.rejects(piped, SessionLostError);
    assert.ok((await failed)[0] instanceof SessionLostError);
    await assert.rejects(process.exited, SessionLostError);
    await assert.rejects(process.stdout.getReader().read(), SessionLostError);
    assert.equal((await env.run(["echo", "new"])).stdout, "new\n");
  } finally {
    await env.close();
    await proxy.stop();
    await own.stop();
  }
});

test("server that is gone fails everything in time", { timeout: 20_000 }, async () => {
  const own = await startServer();
  const states: string[] = [];
  const env = await connect(own.url, {
    reconnectTimeoutMs: 300,
    onState: (state) => states.push(state),
  });
  const process = await env.spawn(["cat"]);
  const calls = [
    process.wait(),
    process.stdout.getReader().read(),
    env.run(["sleep", "60"]),
    env.readFile("/dev/null"),
  ];
  const settled = Promise.allSettled(calls.map((call) => call as Promise<unknown>));
  await own.stop();
  for (const result of await settled) {
    assert.equal(result.status, "rejected");
    const { reason } = result as PromiseRejectedResult;
    const isTyped = reason instanceof ConnectionLostError || reason instanceof InterruptedError;
    assert.ok(isTyped || reason.name === "RefusedError", String(reason));
  }
  assert.deepEqual(states, ["connected", "reconnecting", "lost"]);
  await assert.rejects(env.run(["true"]), /cannot connect/);
  await env.close();
});

test("terminal of another session is taken over as a terminal", { timeout: 20_000 }, async () => {
  const first = await connect(server.url);
  const second = await connect(server.url);
  try {
    const script = "stty -echo; cat; read line; echo got $line; exit 4";
    await first.spawn(["sh", "-c", script], { id: "of-the-first", pty: true });
    const listed = await second.processes({ all: true });
    const { startedAtMs } = listed.find(({ processId }) => processId === "of-the-first") ?? {};
    assert.ok(startedAtMs);
    const taken = await second.attach("of-the-first", { startedAtMs });
    const reader = taken.stdout.getReader();
    await taken.stdin?.write("to cat\n");
    let output = "";
    const decoder = new TextDecoder();
    const more = async (): Promise<boolean> => {
      const { value, done } = await reader.read();
      output += decoder.decode(value);
      return !done;
    };
    while (!output.includes("to cat") && (await more())) {
      // until `cat` has written it
    }
    await taken.stdin?.end();
    await taken.stdin?.write("more\n");
    while (await more()) {
      // until the end
    }
    assert.match(output, /got more/);
    assert.equal((await taken.wait()).exitCode, 4);
    await taken.release({ forget: true });
  } finally {
    await first.close();
    await second.close();
  }
});

test("detached process is followed across cuts and by another session", async () => {
  const proxy = await CuttingProxy.start(server.url);
  const first = await connect(proxy.url);
  const second = await connect(server.url);
  try {
    const script = "echo begin; read line; echo got $line; exit 4";
    const process = await first.spawn(["sh", "-c", script], { detached: true, id: "dev-server" });
    const reader = process.stdout.getReader();
    assert.equal(Buffer.from((await reader.read()).value ?? []).toString(), "begin\n");
    proxy.cut();
    const again = await second.attach("dev-server");
    await again.stdin?.write("hello\n");
    let output = "";
    for await (const chunk of again.stdout) {
      output += Buffer.from(chunk).toString();
    }
    assert.equal(output, "begin\ngot hello\n");
    assert.equal(Buffer.from((await reader.read()).value ?? []).toString(), "got hello\n");
    assert.equal((await process.wait()).exitCode, 4);
    assert.equal((await again.wait()).exitCode, 4);
    await again.release({ forget: true });
    assert.ok(!(await second.processes()).some((entry) => entry.processId === "dev-server"));
  } finally {
    await first.close();
    await second.close();
    await proxy.stop();
  }
});

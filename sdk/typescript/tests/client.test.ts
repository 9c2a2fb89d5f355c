/** Commands, files, errors and transports in Node. */

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import {
  AuthenticationError,
  bridge,
  ClosedError,
  CommandFailedError,
  CommandTimeoutError,
  connect,
  ConnectError,
  type Environment,
  ExecServerError,
  InvalidArgumentError,
  InvalidParamsError,
  LimitError,
  local,
  NotFoundError,
  program,
  readOnlySandbox,
  RefusedError,
  RemoteError,
  spawn,
  StdinClosedError,
  workspaceWriteSandbox,
} from "../src/node.js";
import {
  SERVER,
  startServer,
  temporaryDirectory,
  type TestServer,
  untilNothingRuns,
} from "./support.js";

let server: TestServer;
let env: Environment;
const directory = temporaryDirectory();

before(async () => {
  server = await startServer();
  env = await connect(server.url);
});

after(async () => {
  await env.close();
  await server.stop();
});

test("run returns text, or bytes on request", async () => {
  const done = await env.run(["sh", "-c", "cat; exit 3"], { input: "hi" });
  assert.equal(done.exitCode, 3);
  assert.equal(done.stdout, "hi");
  assert.equal(done.stderr, "");
  const bytes = await env.run(["printf", "\\377\\0"], { encoding: "bytes" });
  assert.deepEqual([...bytes.stdout], [255, 0]);
});

test("failed, late and oversized commands are typed errors and leave nothing running", async () => {
  await assert.rejects(env.run(["sh", "-c", "echo no >&2; exit 2"], { check: true }), (error) => {
    assert.ok(error instanceof CommandFailedError);
    assert.equal(error.result.exitCode, 2);
    assert.match(error.message, /status 2: no/);
    return true;
  });
  await assert.rejects(
    env.run(["sh", "-c", "echo begin; sleep 60"], { timeoutMs: 200 }),
    (error) => {
      assert.ok(error instanceof CommandTimeoutError);
      assert.equal(error.result.stdout, "begin\n");
      return true;
    },
  );
  await assert.rejects(env.run(["yes"], { maxBuffer: 100_000 }), LimitError);
  await assert.rejects(env.run(["/no/such/program"]), RemoteError);
  await assert.rejects(env.run("true" as never), InvalidArgumentError);
  await assert.rejects(env.run([]), InvalidArgumentError);
  await assert.rejects(env.readFile(join(directory, "none")), NotFoundError);
  await assert.rejects(env.readFile(directory), RefusedError);
  await assert.rejects(env.readFile("a\0b"), InvalidArgumentError);
  await assert.rejects(env.request("fs/nope"), { name: "UnsupportedError", code: -32601 });
  await assert.rejects(env.fs.search(directory, "(", { regex: true }), InvalidParamsError);
  await untilNothingRuns(env);
});

test("abort ends commands, starts and waits at once", async () => {
  const reason = new Error("enough");
  const controller = new AbortController();
  const run = env.run(["sleep", "60"], { signal: controller.signal });
  const started = await env.spawn(["sleep", "60"], { signal: controller.signal });
  const plain = await env.spawn(["sleep", "60"]);
  const wait = plain.wait({ signal: controller.signal });
  controller.abort(reason);
  await Promise.all([assert.rejects(run, reason), assert.rejects(wait, reason)]);
  assert.equal((await started.exited).cause, "terminated");
  assert.equal(plain.exit, undefined);
  const late = new AbortController();
  const starting = env.spawn(["sleep", "60"], { signal: late.signal });
  late.abort();
  await assert.rejects(starting, { name: "AbortError" });
  await assert.rejects(env.run(["true"], { signal: late.signal }), { name: "AbortError" });
  await plain.terminate();
  await untilNothingRuns(env);
});

test("spawn has web streams, signals and a terminal", async () => {
  const process = await env.spawn(["sh"], { pty: { rows: 30, cols: 100 } });
  const reader = process.stdout.getReader();
  let seen = "";
  const waitFor = async (mark: string): Promise<void> => {
    while (!seen.includes(mark)) {
      const { done, value } = await reader.read();
      assert.ok(!done, seen);
      seen += Buffer.from(value).toString();
    }
  };
  await process.stdin?.write("stty -echo; echo $((40+2)) $TERM; stty size\n");
  await waitFor("30 100\r\n");
  assert.match(seen, /42 xterm-256color\r\n/);
  await process.resize({ rows: 50, cols: 132 });
  await process.stdin?.write("stty size\n");
  await waitFor("50 132\r\n");
  await process.stdin?.write("exit 7\n");
  await reader.cancel();
  assert.equal((await process.wait()).exitCode, 7);
  const sleeper = await env.spawn(["sleep", "60"]);
  await sleeper.kill("SIGINT");
  assert.deepEqual(await sleeper.wait().then(({ exitCode, signal }) => [exitCode, signal]), [
    130,
    "SIGINT",
  ]);
  await assert.rejects(sleeper.kill("SIGNOPE" as never), /unknown signal/);
});

test("web streams pipe into and out of a process", async () => {
  const process = await env.spawn(["tr", "a-z", "A-Z"]);
  assert.ok(process.stdin);
  const input = new Blob(["hello ", "streams"]).stream();
  const [text] = await Promise.all([
    new Response(process.stdout as ReadableStream<Uint8Array<ArrayBuffer>>).text(),
    input.pipeTo(process.stdin.stream),
  ]);
  assert.equal(text, "HELLO STREAMS");
  await assert.rejects(process.stdin.write("more"), StdinClosedError);
  assert.equal((await process.wait()).exitCode, 0);
});

test("spawn of child_process shape has its events, streams and signals", async () => {
  const child = spawn(env, "sh", ["-c", "cat; echo err >&2; exit 5"]);
  const order: string[] = [];
  child.on("spawn", () => order.push("spawn"));
  child.on("exit", () => order.push("exit"));
  let text = "";
  child.stdout?.setEncoding("utf8").on("data", (chunk: string) => (text += chunk));
  child.stdin?.end("input");
  const [code, signal] = await new Promise<[number | null, string | null]>((resolve) =>
    child.on("close", (code, signal) => resolve([code, signal])),
  );
  assert.deepEqual([code, signal, text, order], [5, null, "input", ["spawn", "exit"]]);
  const killed = spawn(env, "sleep", ["60"]);
  assert.equal(killed.kill("SIGKILL"), true);
  await new Promise((resolve) => killed.on("close", resolve));
  assert.deepEqual([killed.exitCode, killed.signalCode], [null, "SIGKILL"]);
  const missing = spawn(env, "/no/such/program");
  const error = await new Promise((resolve) => missing.on("error", resolve));
  assert.ok(error instanceof RemoteError);
});

test("sandbox confines commands and files", async () => {
  const inside = join(directory, "inside");
  const outside = join(directory, "outside");
  await env.fs.mkdir(inside);
  const readOnly = readOnlySandbox();
  const denied = await env.run(["touch", outside], { sandbox: readOnly });
  assert.notEqual(denied.exitCode, 0);
  assert.equal(denied.sandboxDenied, true);
  const sandbox = workspaceWriteSandbox({ workspace: inside, temporaryDirectories: false });
  await env.fs.writeFile(join(inside, "a"), "a", { sandbox });
  await assert.rejects(env.fs.writeFile(outside, "b", { sandbox }), RemoteError);
  await assert.rejects(env.fs.writeFile(join(inside, "c"), "c", { sandbox: readOnly }), RemoteError);
  assert.equal(await env.readFile(join(inside, "a"), "utf8"), "a");
});

test("watch reports changes until its loop is left", async () => {
  const watched = join(directory, "watched");
  await env.fs.mkdir(watched);
  const watch = await env.fs.watch(watched);
  writeFileSync(join(watched, "new"), "x");
  for await (const { changes } of watch) {
    if (changes.some((change) => change.path === join(watched, "new"))) {
      break;
    }
  }
  const aborted = await env.fs.watch(watched, { signal: AbortSignal.abort() }).catch((e) => e);
  assert.equal(aborted.name, "AbortError");
});

test("large files are read and written by blocks", async () => {
  const path = join(directory, "large");
  const bytes = new Uint8Array(40 << 20);
  for (let index = 0; index < bytes.length; index += 4096) {
    bytes[index] = index >> 12;
  }
  await env.fs.writeFile(path, bytes, { atomic: true });
  assert.ok(readFileSync(path).equals(bytes));
  assert.ok(Buffer.from(await env.readFile(path)).equals(bytes));
  assert.equal((await env.fs.readdir(directory)).filter((e) => e.name.endsWith(".tmp")).length, 0);
  const stream = env.fs.readStream(path, { start: bytes.length - 5 });
  let rest = 0;
  for await (const chunk of stream) {
    rest += chunk.byteLength;
  }
  assert.equal(rest, 5);
});

test("1000 commands at once all end", { timeout: 60_000 }, async () => {
  const runs = Array.from({ length: 1000 }, (_, index) => env.run(["echo", String(index)]));
  const results = await Promise.all(runs);
  assert.ok(results.every((result, index) => result.stdout === `${index}\n`));
});

test("closed environment refuses calls and has ended its commands", async () => {
  const other = await connect(server.url);
  const process = await other.spawn(["sleep", "60"], { stdin: "ignore" });
  const waiting = other.run(["sleep", "60"]);
  const ended = waiting.then(
    (result) => assert.equal(result.cause, "terminated"),
    (error) => assert.ok(error instanceof ExecServerError, String(error)),
  );
  await other.close();
  await ended;
  await assert.rejects(other.run(["true"]), ClosedError);
  await process.exited.catch(() => {});
  await other.close();
});

test("wrong address and wrong token are typed errors with a next step", async () => {
  await assert.rejects(connect("http://127.0.0.1:1"), /use ws:\/\/…, wss:\/\/…, unix:\/\/…/);
  await assert.rejects(connect("nonsense"), InvalidArgumentError);
  await assert.rejects(connect("unix:///no/such/socket"), ConnectError);
  await assert.rejects(connect("ws://192.0.2.1:1", { token: "t" }), /unencrypted/);
  const tokenFile = join(directory, "token");
  writeFileSync(tokenFile, "secret\n");
  const args = ["--ws-auth", "capability-token", "--ws-token-file", tokenFile];
  const guarded = await startServer(args);
  try {
    await assert.rejects(connect(guarded.url), (error) => {
      assert.ok(error instanceof AuthenticationError);
      assert.equal(error.status, 401);
      assert.match(error.message, /missing websocket bearer token; check the token/);
      return true;
    });
    await assert.rejects(connect(guarded.url, { token: "wrong" }), AuthenticationError);
    const allowed = await connect(guarded.url, { token: "secret" });
    assert.equal((await allowed.run(["echo", "ok"])).stdout, "ok\n");
    await allowed.close();
  } finally {
    await guarded.stop();
  }
});

test("unix sockets and programs on stdio work like websockets", async () => {
  const path = join(directory, "server.sock");
  const listener = await startServer([], `unix://${path}`);
  try {
    const unix = await connect(`unix://${path}`);
    assert.equal((await unix.run(["echo", "unix"])).stdout, "unix\n");
    await unix.close();
  } finally {
    await listener.stop();
  }
  const stdio = await program([SERVER, "--listen", "stdio"]);
  const done = await stdio.run(["cat"], { input: "x".repeat(300_000) });
  assert.equal(done.stdout.length, 300_000);
  await stdio.close();
  await assert.rejects(program(["/no/such/program"]), /cannot start/);
  await assert.rejects(program(["sh", "-c", "echo broken >&2; exit 3"]), /status 3: broken/);
});

test("bridge reaches environments that the program knows", async () => {
  const there = await bridge(server.url, { program: SERVER, remoteProgram: SERVER });
  const done = await there.run(["cat"], { input: "over the bridge" });
  assert.equal(done.stdout, "over the bridge");
  await there.close();
  const gone = bridge("ws://127.0.0.1:1", { program: SERVER, connectTimeoutMs: 5000 });
  await assert.rejects(gone, ConnectError);
});

test("local starts the server of this machine and joins it", async () => {
  const socket = join(directory, "run", "server.sock");
  const options = { program: SERVER, socket };
  const first = await local(options);
  const second = await local(options);
  const pid = async (environment: Environment): Promise<number> =>
    (await environment.request<{ osPid: number }>("server/status")).osPid;
  const serverPid = await pid(first);
  assert.equal(await pid(second), serverPid);
  assert.equal((await second.run(["echo", "here"])).stdout, "here\n");
  await first.close();
  await second.close();
  process.kill(serverPid, "SIGTERM");
  await assert.rejects(local({ program: "/no/such/program", socket: join(directory, "x", "s") }), {
    name: "ConnectError",
    message: /install exec-server/,
  });
});

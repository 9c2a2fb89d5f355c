/**
 * Runs the shared cases, cuts and transports without a test runner: for programs other than Node.
 * `bun build/tests/standalone.js`
 */

import { join } from "node:path";

import { connect, local, program, spawn } from "../src/node.js";
import { applies, type CasePlace, runCase } from "./case-runner.js";
import { readCases } from "./cases.js";
import { CuttingProxy, SERVER, startServer, temporaryDirectory } from "./support.js";

let failures = 0;
let passes = 0;

async function check(name: string, act: () => Promise<void>): Promise<void> {
  try {
    await act();
    passes += 1;
  } catch (error) {
    failures += 1;
    console.error(`failed: ${name}: ${error instanceof Error ? error.message : String(error)}`);
  }
}

function equal(actual: unknown, expected: unknown): void {
  if (actual !== expected) {
    throw new Error(`expected ${JSON.stringify(expected)}: got ${JSON.stringify(actual)}`);
  }
}

const directory = temporaryDirectory();
const server = await startServer(["--state-dir", join(directory, "state")]);
const proxy = await CuttingProxy.start(server.url);
for (const [index, shared] of readCases().entries()) {
  const tag = `case${index}`;
  let noticed: (() => void) | undefined;
  const onState = (state: string): void => {
    if (state === "reconnecting") {
      noticed?.();
    }
  };
  const place: CasePlace = {
    library: "node",
    offers: new Set(["sandbox", "proxy", "durable", "tunnels"]),
    connect: () => connect(`${proxy.url}/?tag=${tag}`, { onState }),
    cut: () =>
      new Promise((resolve) => {
        noticed = resolve;
        proxy.cut(tag);
      }),
  };
  if (applies(shared, place)) {
    await check(shared.name, () => runCase(shared, place));
  }
}

await check("output is counted through cuts", async () => {
  const env = await connect(proxy.url);
  const seq = await env.spawn(["seq", "1", "300000"], { stdin: "ignore" });
  let [text, chunks] = ["", 0];
  const decoder = new TextDecoder();
  for await (const chunk of seq.stdout) {
    text += decoder.decode(chunk, { stream: true });
    chunks += 1;
    if (chunks % 8 === 0 && proxy.cuts < 60) {
      proxy.cut();
    }
  }
  const lines = text.trimEnd().split("\n");
  equal(lines.length, 300_000);
  equal(lines.findIndex((line, index) => line !== String(index + 1)), -1);
  await env.close();
});

await check("token and unix socket", async () => {
  const socket = join(directory, "server.sock");
  const listener = await startServer([], `unix://${socket}`);
  const env = await connect(`unix://${socket}`);
  equal((await env.run(["echo", "unix"])).stdout, "unix\n");
  await env.close();
  await listener.stop();
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode("secret"));
  const hex = Buffer.from(digest).toString("hex");
  const guarded = await startServer(["--ws-auth", "capability-token", "--ws-token-sha256", hex]);
  const allowed = await connect(guarded.url, { token: "secret" });
  equal((await allowed.run(["echo", "token"])).stdout, "token\n");
  await allowed.close();
  const refused = await connect(guarded.url, { token: "wrong" }).catch((error: Error) => error.name);
  equal(refused, "AuthenticationError");
  await guarded.stop();
});

await check("program on stdio", async () => {
  const env = await program([SERVER, "--listen", "stdio"]);
  equal((await env.run(["cat"], { input: "stdio" })).stdout, "stdio");
  await env.close();
});

await check("server of this machine", async () => {
  const env = await local({ program: SERVER, socket: join(directory, "run", "server.sock") });
  equal((await env.run(["echo", "local"])).stdout, "local\n");
  const { osPid } = await env.request("server/status", {});
  await env.close();
  process.kill(osPid, "SIGTERM");
});

await check("shape of child_process", async () => {
  const env = await connect(server.url);
  const child = spawn(env, "cat");
  let text = "";
  child.stdout?.on("data", (chunk: Buffer) => (text += chunk.toString()));
  child.stdin?.end("child");
  await new Promise((resolve) => child.on("close", resolve));
  equal(text, "child");
  await env.close();
});

await proxy.stop();
await server.stop();
console.log(`${passes} passed, ${failures} failed`);
process.exit(failures === 0 ? 0 : 1);

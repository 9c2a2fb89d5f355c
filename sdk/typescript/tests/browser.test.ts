/** The shared cases, and cuts under load, in a real browser. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { dirname, join, normalize } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import { applies, type CasePlace } from "./case-runner.js";
import { readCases } from "./cases.js";
import { Chromium, findChromium } from "./chromium.js";
import { CuttingProxy, startServer, temporaryDirectory, type TestServer } from "./support.js";

const TOKEN = "a token that the page does not have";
const BUILD = join(dirname(fileURLToPath(import.meta.url)), "..");

let server: TestServer;
let proxy: CuttingProxy;
let pages: Server;
let browser: Chromium;

before(async () => {
  const chromium = findChromium();
  assert.ok(chromium, "no Chromium: install the package `chromium`, or name one with CHROMIUM");
  const state = ["--state-dir", join(temporaryDirectory(), "state")];
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(TOKEN));
  const auth = ["--ws-auth", "capability-token"];
  auth.push("--ws-token-sha256", Buffer.from(digest).toString("hex"));
  server = await startServer([...state, ...auth]);
  proxy = await CuttingProxy.start(server.url, TOKEN);
  pages = createServer((request, response) => {
    const url = new URL(request.url ?? "/", "http://localhost");
    if (url.pathname === "/cut") {
      proxy.cut(url.searchParams.get("tag") ?? undefined);
      response.end();
    } else if (url.pathname === "/") {
      response.setHeader("Content-Type", "text/html");
      response.end('<!doctype html><title>test</title><script type="module" src="/tests/page.js"></script>');
    } else {
      try {
        const script = readFileSync(join(BUILD, normalize(url.pathname)));
        response.setHeader("Content-Type", "text/javascript");
        response.end(script);
      } catch {
        response.statusCode = 404;
        response.end();
      }
    }
  });
  await new Promise<void>((resolve) => pages.listen(0, "127.0.0.1", resolve));
  const address = pages.address() as { port: number };
  browser = await Chromium.open(chromium, `http://127.0.0.1:${address.port}/`);
  const isLoaded = "new Promise(r => { const t = setInterval(() => { if (window.runTestCase) { clearInterval(t); r(); } }, 5); })";
  await browser.evaluate(isLoaded);
});

after(async () => {
  await browser?.close();
  pages?.closeAllConnections();
  pages?.close();
  await proxy?.stop();
  await server?.stop();
});

const offers = new Set(["sandbox", "proxy", "durable", "tunnels"]);

test("shared cases pass in a browser", { concurrency: 4 }, async (context) => {
  const place = { library: "browser", offers } as unknown as CasePlace;
  const running: Promise<void>[] = [];
  for (const [index, shared] of readCases().entries()) {
    if (applies(shared, place)) {
      const call = `runTestCase(${JSON.stringify(shared)}, ${JSON.stringify(proxy.url)}, "case${index}")`;
      running.push(context.test(shared.name, async () => void (await browser.evaluate(call))));
    }
  }
  await Promise.all(running);
});

test("page loses and repeats nothing in 200 cuts under load", { timeout: 60_000 }, async () => {
  const result = await browser.evaluate(`countThroughCuts(${JSON.stringify(proxy.url)}, 200)`);
  const { lines, wrong } = result as { lines: number; wrong: string | null };
  assert.equal(wrong, null);
  assert.ok(lines > 1000, `${lines} lines`);
});

test("page cannot connect without the proxy that removes its origin", async () => {
  const call = `connectFails(${JSON.stringify(server.url)})`;
  assert.match(String(await browser.evaluate(call)), /cannot connect to ws:\/\/127\.0\.0\.1/);
});

/** The examples of the documentation run, and are those of the documentation. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";

import { ROOT, startServer, type TestServer } from "./support.js";

const EXAMPLES = join(ROOT, "sdk", "typescript", "examples");
const names = readdirSync(EXAMPLES).filter((name) => name.endsWith(".ts"));
let server: TestServer;

before(async () => {
  server = await startServer();
});

after(() => server.stop());

/** What each example prints, in part. */
const OUTPUT: Record<string, RegExp> = {
  "run.ts": /^3 hi \n$/,
  "process.ts": /building app\n143 SIGTERM terminated\n/,
  "child-process.ts": /^HELLO\n$/,
  "terminal.ts": /^true\n$/,
  "files.ts": /one\ntwo\n[^]*line: 2[^]*\n8\ntrue\n$/,
  "watch.ts": /created[^]*false\n$/,
  "sandbox.ts": /^0 1 true\n$/,
  "detached.ts": /^started\n/,
  "tunnel.ts": /^200\nHTTP\/1.0 200 OK\n$/,
  "abort.ts": /^\nAbortError\n$/,
};

test("examples run", { concurrency: 4 }, async (context) => {
  const runs = names.map((name) =>
    context.test(name, async () => {
      const script = join(ROOT, "sdk", "typescript", "build", "examples", name.replace(".ts", ".js"));
      const { stdout, stderr } = await promisify(execFile)(process.execPath, [script], {
        env: { ...process.env, EXEC_SERVER_URL: server.url },
        timeout: 20_000,
      });
      assert.equal(stderr, "");
      assert.match(stdout, OUTPUT[name] ?? /^nothing is known of this example$/);
    }),
  );
  await Promise.all(runs);
});

test("documentation shows the examples as they are", () => {
  const guide = readFileSync(join(ROOT, "docs", "sdk-typescript.md"), "utf8");
  const blocks = [...guide.matchAll(/^```ts\n([^]*?)^```$/gm)].map((match) => match[1]);
  const examples = names.map((name) => readFileSync(join(EXAMPLES, name), "utf8"));
  assert.deepEqual([...blocks].sort(), examples.sort());
});

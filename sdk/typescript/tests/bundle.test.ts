/** What a bundler makes of the package for browsers. */

import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { build } from "esbuild";

import { ROOT } from "./support.js";

const PACKAGE = join(ROOT, "sdk", "typescript");

interface Bundle {
  code: string;
  bytes: number;
  /** Files of which something is in the bundle. */
  files: string[];
}

async function bundle(source: string): Promise<Bundle> {
  const { outputFiles, metafile } = await build({
    stdin: { contents: source, resolveDir: PACKAGE },
    absWorkingDir: PACKAGE,
    platform: "browser",
    format: "esm",
    target: "es2022",
    bundle: true,
    minify: true,
    write: false,
    metafile: true,
    logLevel: "silent",
  });
  const [output] = Object.values(metafile.outputs);
  assert.ok(outputFiles[0] && output);
  const used = Object.entries(output.inputs).filter(([, input]) => input.bytesInOutput > 0);
  const files = used.map(([path]) => path).sort();
  return { code: outputFiles[0].text, bytes: output.bytes, files };
}

test("bundle for browsers has no code of Node and no dependency", async () => {
  const source = 'import { connect } from "@exec-server/client"; globalThis.connect = connect;';
  const { code, bytes, files } = await bundle(source);
  const isOurs = (path: string): boolean => path === "<stdin>" || /^dist\/[\w-]+\.js$/.test(path);
  assert.deepEqual(files.filter((path) => !isOurs(path)), []);
  for (const path of ["node", "node-links", "local-server", "child-process", "port-forward"]) {
    assert.ok(!files.includes(`dist/${path}.js`), path);
  }
  assert.doesNotMatch(code, /\bnode:|require\(|\bimport\b/);
  assert.ok(files.includes("dist/session-client.js") && files.includes("dist/websocket.js"));
  // Nothing of the policies is used.
  assert.ok(!files.includes("dist/sandbox.js"));
  assert.ok(bytes < 60 << 10, `${bytes} bytes`);
});

test("bundle has only what is imported", async () => {
  const source = 'import { readOnlySandbox } from "@exec-server/client"; console.log(readOnlySandbox());';
  const { bytes, files } = await bundle(source);
  assert.ok(!files.includes("dist/session-client.js") && !files.includes("dist/files.js"));
  assert.ok(bytes < 1 << 10, `${bytes} bytes of ${files.join(" ")}`);
});

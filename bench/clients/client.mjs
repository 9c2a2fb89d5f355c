// Runs commands through the TypeScript client for `exec-bench`, and times them. The argument is the
// URL of the server. Each line on stdin is `run COUNT SECONDS` or `output BYTES`; the answer is a
// line with the times as a JSON list.

import { createInterface } from "node:readline";
import { connect } from "../../sdk/typescript/dist/node.js";

const seconds = () => performance.now() / 1000;
const env = await connect(process.argv[2]);
for await (const line of createInterface({ input: process.stdin })) {
  const [operation, amount, limit] = line.split(" ");
  const times = [];
  if (operation === "run") {
    const end = seconds() + Number(limit);
    while (times.length < Number(amount) && (times.length === 0 || seconds() < end)) {
      const start = seconds();
      const { exitCode } = await env.run(["true"]);
      times.push(seconds() - start);
      if (exitCode !== 0) throw new Error(`exit code ${exitCode}`);
    }
  } else {
    const start = seconds();
    const child = await env.spawn(["head", "-c", amount, "/dev/zero"]);
    let size = 0;
    for await (const chunk of child.stdout) size += chunk.length;
    times.push(seconds() - start);
    if (size !== Number(amount)) throw new Error(`${size} bytes instead of ${amount}`);
    await child.wait();
  }
  console.log(JSON.stringify(times));
}
await env.close();

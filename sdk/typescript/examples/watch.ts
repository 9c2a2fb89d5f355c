import { connect } from "@exec-server/client";

const env = await connect(process.env.EXEC_SERVER_URL ?? "ws://127.0.0.1:8080");
const directory = (await env.run(["mktemp", "-d"], { check: true })).stdout.trim();
const watch = await env.fs.watch(directory);
await env.writeFile(`${directory}/new`, "x");
for await (const { changes, overflow } of watch) {
  console.log(changes, overflow); // after an overflow, list the tree again
  break; // ends the watch
}
await env.fs.rm(directory, { recursive: true });
await env.close();

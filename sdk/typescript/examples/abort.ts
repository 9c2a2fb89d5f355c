import { CommandTimeoutError, connect, InterruptedError } from "@exec-server/client";

const env = await connect(process.env.EXEC_SERVER_URL ?? "ws://127.0.0.1:8080");
try {
  await env.run(["sleep", "60"], { timeoutMs: 100 });
} catch (error) {
  if (error instanceof CommandTimeoutError) {
    console.log(error.result.stdout); // what there was until then
  } else if (error instanceof InterruptedError) {
    console.log("the connection broke while the command started: it may have run briefly");
  }
}
const controller = new AbortController();
const run = env.run(["sleep", "60"], { signal: controller.signal });
controller.abort(); // ends the command and everything it started
await run.catch((error: Error) => console.log(error.name)); // AbortError
await env.close();

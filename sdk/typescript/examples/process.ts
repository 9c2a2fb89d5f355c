import { connect } from "@exec-server/client";

const env = await connect(process.env.EXEC_SERVER_URL ?? "ws://127.0.0.1:8080");
const build = await env.spawn(["sh", "-c", "read name; echo building $name; sleep 60"]);
await build.stdin?.write("app\n");

const decoder = new TextDecoder();
for await (const chunk of build.stdout) {
  process.stdout.write(decoder.decode(chunk, { stream: true }));
  await build.terminate({ graceMs: 1000 });
}
const { exitCode, signal, cause } = await build.wait();
console.log(exitCode, signal, cause); // 143 SIGTERM terminated
await env.close();

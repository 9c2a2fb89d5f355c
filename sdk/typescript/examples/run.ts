import { connect } from "@exec-server/client";

const env = await connect(process.env.EXEC_SERVER_URL ?? "ws://127.0.0.1:8080");
const done = await env.run(["sh", "-c", "cat; exit 3"], { input: "hi" });
console.log(done.exitCode, done.stdout, done.stderr); // 3 hi
await env.close();

import { connect, spawn } from "@exec-server/client";

const env = await connect(process.env.EXEC_SERVER_URL ?? "ws://127.0.0.1:8080");
const child = spawn(env, "tr", ["a-z", "A-Z"]);
child.stdout?.on("data", (chunk: Buffer) => process.stdout.write(chunk)); // HELLO
child.stdin?.end("hello\n");
await new Promise((resolve) => child.on("close", resolve));
await env.close();

import { connect } from "@exec-server/client";

const env = await connect(process.env.EXEC_SERVER_URL ?? "ws://127.0.0.1:8080");
const shell = await env.spawn(["sh"], { pty: { rows: 24, cols: 80 } });
await shell.resize({ rows: 50, cols: 132 });
await shell.stdin?.write("stty size; exit\n");
const text = await new Response(shell.stdout as ReadableStream<Uint8Array<ArrayBuffer>>).text();
console.log(text.includes("50 132")); // true
await env.close();

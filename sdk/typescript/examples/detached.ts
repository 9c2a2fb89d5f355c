import { connect } from "@exec-server/client";

const url = process.env.EXEC_SERVER_URL ?? "ws://127.0.0.1:8080";
const env = await connect(url);
await env.spawn(["sh", "-c", "echo started; sleep 600"], { detached: true, id: "dev-server" });
await env.close(); // the process belongs to the server and runs on

const later = await connect(url);
const server = await later.attach("dev-server");
const { value } = await server.stdout.getReader().read();
console.log(new TextDecoder().decode(value)); // started
await server.terminate();
await server.wait();
await later.close();

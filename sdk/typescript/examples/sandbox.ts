import { connect, workspaceWriteSandbox } from "@exec-server/client";

const env = await connect(process.env.EXEC_SERVER_URL ?? "ws://127.0.0.1:8080");
const workspace = (await env.run(["mktemp", "-d", "/var/tmp/ws.XXXXXX"])).stdout.trim();
const sandbox = workspaceWriteSandbox({ workspace, deny: ["**/.env"], network: "restricted" });

const inside = await env.run(["touch", `${workspace}/a`], { sandbox });
const outside = await env.run(["touch", "/usr/a"], { sandbox });
console.log(inside.exitCode, outside.exitCode, outside.sandboxDenied); // 0 1 true
await env.fs.rm(workspace, { recursive: true });
await env.close();

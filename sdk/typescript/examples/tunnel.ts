import { connect, forwardPort } from "@exec-server/client";

const env = await connect(process.env.EXEC_SERVER_URL ?? "ws://127.0.0.1:8080");
const script = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=0)";
const server = await env.spawn(["python3", "-uc", script], { stdin: "ignore" });
await server.stdout.getReader().read(); // it prints its address when it listens
const port = (await env.ports()).find(({ processId }) => processId === server.id)?.port ?? 0;

const forward = await forwardPort(env, { port }); // a port of this machine
const response = await fetch(`http://127.0.0.1:${forward.port}/`);
console.log(response.status); // 200
await forward.close();

const tunnel = await env.openTunnel({ port }); // the same as streams, also in browsers
const writer = tunnel.writable.getWriter();
await writer.write("GET / HTTP/1.0\r\n\r\n");
const text = await new Response(tunnel.readable as ReadableStream<Uint8Array<ArrayBuffer>>).text();
console.log(text.split("\r\n")[0]); // HTTP/1.0 200 OK
await env.close();

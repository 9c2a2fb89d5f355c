/** Servers, a proxy that cuts connections, and other support of the tests. */

import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { connect as connectSocket, createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import type { Environment } from "../src/node.js";

/** Root of the repository. */
export const ROOT = findRoot(dirname(fileURLToPath(import.meta.url)));

/** The program under test. */
export const SERVER = resolve(
  process.env["EXEC_SERVER_TEST_PROGRAM"] ?? join(ROOT, "target", "debug", "exec-server"),
);

function findRoot(from: string): string {
  return existsSync(join(from, "Cargo.lock")) ? from : findRoot(dirname(from));
}

if (!existsSync(SERVER)) {
  throw new Error(`no server at ${SERVER}: build it, or name one with EXEC_SERVER_TEST_PROGRAM`);
}

/** A running server. */
export interface TestServer {
  url: string;
  child: ChildProcess;
  stop(): Promise<void>;
}

/** Starts a server and waits until it listens. */
export async function startServer(
  args: readonly string[] = [],
  listen = "ws://127.0.0.1:0",
): Promise<TestServer> {
  const child = spawn(SERVER, ["--listen", listen, ...args], {
    stdio: ["ignore", "pipe", "inherit"],
    env: { ...process.env, EXEC_SERVER_HOME: "/nonexistent" },
  });
  const url = await new Promise<string>((resolve, reject) => {
    let text = "";
    child.stdout.on("data", (data: Buffer) => {
      text += data.toString();
      if (text.includes("\n")) {
        resolve(text.trim());
      }
    });
    child.once("exit", (code) => reject(new Error(`the server ended with ${code}`)));
    child.once("error", reject);
  });
  const ended = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  const stop = async (): Promise<void> => {
    child.kill("SIGKILL");
    await ended;
  };
  return { url, child, stop };
}

/** A directory that is removed after the test program. */
export function temporaryDirectory(): string {
  const path = mkdtempSync(join(tmpdir(), "exec-server-ts-"));
  process.once("exit", () => rmSync(path, { recursive: true, force: true }));
  return path;
}

/**
 * Forwards connections, and breaks all of them on demand. Like a reverse proxy it removes `Origin`
 * from the upgrade, and adds a token.
 */
export class CuttingProxy {
  readonly url: string;
  cuts = 0;
  /** While set, connections are accepted and broken at once. */
  refusing = false;
  #server: Server;
  /** Both ends of each connection, with the tag in its URL's query. */
  #pairs = new Map<[Socket, Socket], string>();
  #target: string;
  #token: string | undefined;

  private constructor(server: Server, port: number, target: string, token: string | undefined) {
    this.#server = server;
    this.#target = target;
    this.#token = token;
    this.url = `ws://127.0.0.1:${port}`;
    server.on("connection", (socket) => this.#accept(socket));
  }

  static async start(target: string, token?: string): Promise<CuttingProxy> {
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const address = server.address();
    if (typeof address !== "object" || address === null) {
      throw new Error("the proxy has no address");
    }
    return new CuttingProxy(server, address.port, target, token);
  }

  #accept(client: Socket): void {
    client.on("error", () => {});
    if (this.refusing) {
      client.destroy();
      return;
    }
    const { hostname, port } = new URL(this.#target);
    const server = connectSocket(Number(port), hostname);
    server.on("error", () => client.destroy());
    const pair: [Socket, Socket] = [client, server];
    this.#pairs.set(pair, "");
    const end = (): void => {
      this.#pairs.delete(pair);
      client.destroy();
      server.destroy();
    };
    client.on("close", end);
    server.on("close", end);
    let head = Buffer.alloc(0);
    const readHead = (data: Buffer): void => {
      head = Buffer.concat([head, data]);
      const end = head.indexOf("\r\n\r\n");
      if (end < 0) {
        return;
      }
      client.off("data", readHead);
      const lines = head.subarray(0, end).toString("latin1").split("\r\n");
      this.#pairs.set(pair, /\?tag=(\w+)/.exec(lines[0] ?? "")?.[1] ?? "");
      const kept = lines.filter((line) => !/^origin:/i.test(line));
      if (this.#token !== undefined) {
        kept.push(`Authorization: Bearer ${this.#token}`);
      }
      server.write(`${kept.join("\r\n")}\r\n\r\n`, "latin1");
      server.write(head.subarray(end + 4));
      client.pipe(server);
    };
    client.on("data", readHead);
    server.pipe(client);
  }

  /** Breaks every connection at once, or those whose URL has this tag. */
  cut(tag?: string): void {
    this.cuts += 1;
    for (const [pair, its] of this.#pairs) {
      if (tag === undefined || tag === its) {
        this.#pairs.delete(pair);
        for (const socket of pair) {
          socket.resetAndDestroy();
        }
      }
    }
  }

  get connections(): number {
    return this.#pairs.size;
  }

  async stop(): Promise<void> {
    this.cut();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }
}

/** Waits, bounded, until no process of an environment runs. */
export async function untilNothingRuns(environment: Environment): Promise<void> {
  const deadline = Date.now() + 10_000;
  for (;;) {
    const running = (await environment.processes()).filter((process) => process.running);
    if (running.length === 0) {
      return;
    }
    if (Date.now() > deadline) {
      throw new Error(`still running: ${running.map((process) => process.argv).join("; ")}`);
    }
  }
}

/** Waits, bounded, until a condition holds. */
export async function until(condition: () => boolean, what: string): Promise<void> {
  const deadline = Date.now() + 10_000;
  while (!condition()) {
    if (Date.now() > deadline) {
      throw new Error(`timed out: ${what}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

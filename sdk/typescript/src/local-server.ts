/**
 * The server of this machine. The program `exec-server` starts it on demand.
 *
 * @module
 */

import { execFile } from "node:child_process";
import { lstatSync, statSync } from "node:fs";
import { homedir, userInfo } from "node:os";
import { dirname, isAbsolute, join } from "node:path";

import { abortReason, ConnectError } from "./errors.js";
import type { Connector, Link } from "./link.js";
import { NodeConnector } from "./node-links.js";

const START_MS = 20_000;

/** Joins the server of this machine, or starts it. Starts it again if it has ended. */
export class LocalConnector implements Connector {
  readonly address: string;
  #path: string;
  #program: string;

  constructor(options: { socket?: string | undefined; program?: string | undefined }) {
    this.#path = options.socket ?? localSocket();
    this.#program = options.program ?? findProgram();
    this.address = `unix://${this.#path}`;
  }

  async open(signal: AbortSignal): Promise<Link> {
    checkDirectory(dirname(this.#path));
    const connector = new NodeConnector(`unix://${encodeURI(this.#path)}`, {});
    try {
      return await connector.open(signal);
    } catch (error) {
      const code = (error as { cause?: { code?: string } }).cause?.code;
      if (code !== "ENOENT" && code !== "ECONNREFUSED") {
        throw error;
      }
    }
    await this.#start(signal);
    checkDirectory(dirname(this.#path));
    return connector.open(signal);
  }

  /** Any command for this machine starts its server. */
  #start(signal: AbortSignal): Promise<void> {
    const env = { ...process.env, EXEC_SERVER_SOCKET: this.#path };
    return new Promise((resolve, reject) => {
      const args = ["ps", "--env", "local", "--json"];
      execFile(this.#program, args, { env, timeout: START_MS }, (error, _stdout, stderr) => {
        if (signal.aborted) {
          reject(abortReason(signal));
        } else if (error === null) {
          resolve();
        } else if ((error as { code?: unknown }).code === "ENOENT") {
          const text = `cannot find the program \`${this.#program}\`: install exec-server, or name it with \`program\``;
          reject(new ConnectError(text, "caller", false, { cause: error }));
        } else {
          const reason = stderr.trim().split("\n")[0] || error.message;
          const text = `\`${this.#program}\` cannot start the server of this machine: ${reason}`;
          reject(new ConnectError(text, "server", false, { cause: error }));
        }
      });
    });
  }
}

/** Returns the program `exec-server`: the one that `EXEC_SERVER` names, or that of the `PATH`. */
export function findProgram(): string {
  return process.env["EXEC_SERVER"] || "exec-server";
}

/** Returns the socket of this machine's server, found as `exec-server` finds it. */
function localSocket(): string {
  const absolute = (name: string): string | undefined => {
    const value = process.env[name];
    return value !== undefined && isAbsolute(value) ? value : undefined;
  };
  const socket = absolute("EXEC_SERVER_SOCKET");
  if (socket !== undefined) {
    return socket;
  }
  const runtime = absolute("XDG_RUNTIME_DIR");
  if (runtime !== undefined && isOwnDirectory(runtime)) {
    return join(runtime, "exec-server", "server.sock");
  }
  const state = absolute("XDG_STATE_HOME") ?? join(homedir(), ".local", "state");
  return join(state, "exec-server", "run", "server.sock");
}

function isOwnDirectory(path: string): boolean {
  try {
    const found = statSync(path);
    return found.isDirectory() && found.uid === userInfo().uid;
  } catch {
    return false;
  }
}

/** Refuses a directory in which other accounts could listen. The program makes a missing one. */
function checkDirectory(directory: string): void {
  let found;
  try {
    found = lstatSync(directory);
  } catch {
    return;
  }
  const wrong = !found.isDirectory()
    ? "it is not a directory"
    : found.uid !== userInfo().uid
      ? "it belongs to another account"
      : (found.mode & 0o077) !== 0
        ? "other accounts can use it"
        : undefined;
  if (wrong !== undefined) {
    const text = `cannot use \`${directory}\` for the socket of this machine: ${wrong}`;
    throw new ConnectError(text, "caller", false);
  }
}

/** A headless Chromium that runs one page, driven over its debugging pipe. */

import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import type { Readable, Writable } from "node:stream";

import { temporaryDirectory } from "./support.js";

const PROGRAMS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/** The browser of this machine. */
export function findChromium(): string | undefined {
  const named = process.env["CHROMIUM"];
  return named ?? PROGRAMS.find((path) => existsSync(path));
}

interface Reply {
  id?: number;
  result?: Record<string, unknown>;
  error?: { message: string };
}

/** A running browser. */
export class Chromium {
  #child: ChildProcess;
  #input: Writable;
  #ids = 0;
  #pending = new Map<number, (reply: Reply) => void>();
  #session: string | undefined;
  #ended: Promise<void>;

  private constructor(child: ChildProcess) {
    this.#child = child;
    this.#input = child.stdio[3] as Writable;
    this.#input.on("error", () => {});
    let rest = "";
    (child.stdio[4] as Readable).setEncoding("utf8").on("data", (text: string) => {
      const messages = (rest + text).split("\0");
      rest = messages.pop() ?? "";
      for (const message of messages) {
        const reply = JSON.parse(message) as Reply;
        if (reply.id !== undefined) {
          this.#pending.get(reply.id)?.(reply);
          this.#pending.delete(reply.id);
        }
      }
    });
    this.#ended = new Promise((resolve) => {
      child.once("exit", (code) => {
        for (const settle of this.#pending.values()) {
          settle({ error: { message: `the browser ended with ${code}` } });
        }
        resolve();
      });
    });
  }

  /** Starts a browser and opens a page. */
  static async open(program: string, url: string): Promise<Chromium> {
    const flags = [
      "--headless",
      "--no-sandbox",
      "--disable-gpu",
      "--disable-dev-shm-usage",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
      "--remote-debugging-pipe",
      `--user-data-dir=${temporaryDirectory()}`,
      "about:blank",
    ];
    const stdio = ["ignore", "ignore", "ignore", "pipe", "pipe"] as const;
    const browser = new Chromium(spawn(program, flags, { stdio: [...stdio] }));
    const { targetId } = await browser.#send("Target.createTarget", { url: "about:blank" });
    const attach = { targetId, flatten: true };
    const { sessionId } = await browser.#send("Target.attachToTarget", attach);
    browser.#session = sessionId as string;
    await browser.#send("Page.enable", {});
    await browser.#send("Page.navigate", { url });
    return browser;
  }

  #send(method: string, params: object): Promise<Record<string, unknown>> {
    this.#ids += 1;
    const id = this.#ids;
    const session = this.#session === undefined ? {} : { sessionId: this.#session };
    this.#input.write(`${JSON.stringify({ id, method, params, ...session })}\0`);
    return new Promise((resolve, reject) => {
      this.#pending.set(id, ({ result, error }) => {
        if (error === undefined) {
          resolve(result ?? {});
        } else {
          reject(new Error(`${method}: ${error.message}`));
        }
      });
    });
  }

  /** Evaluates an expression in the page, and waits for its promise. */
  async evaluate(expression: string): Promise<unknown> {
    const params = { expression, awaitPromise: true, returnByValue: true };
    const reply = (await this.#send("Runtime.evaluate", params)) as {
      result: { value?: unknown };
      exceptionDetails?: { text: string; exception?: { description?: string } };
    };
    const { exceptionDetails } = reply;
    if (exceptionDetails !== undefined) {
      throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    }
    return reply.result.value;
  }

  async close(): Promise<void> {
    this.#child.kill("SIGKILL");
    await this.#ended;
  }
}

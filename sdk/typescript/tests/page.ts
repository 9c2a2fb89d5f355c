/** The page of the browser tests: what the tests call in it. */

import { connect } from "../src/index.js";
import { type Case, runCase } from "./case-runner.js";

async function cut(tag: string): Promise<void> {
  await fetch(`/cut?tag=${tag}`);
}

Object.assign(globalThis, {
  async runTestCase(shared: Case, url: string, tag: string): Promise<void> {
    let noticed: (() => void) | undefined;
    const onState = (state: string): void => {
      if (state === "reconnecting") {
        noticed?.();
      }
    };
    await runCase(shared, {
      library: "browser",
      offers: new Set(["sandbox", "proxy", "durable", "tunnels"]),
      connect: () => connect(`${url}/?tag=${tag}`, { onState }),
      cut: async () => {
        const seen = new Promise<boolean>((resolve) => (noticed = () => resolve(true)));
        // A cut during the recovery from the one before changes no state: cut again.
        const later = () => new Promise<boolean>((resolve) => setTimeout(resolve, 1_000, false));
        do {
          await cut(tag);
        } while (!(await Promise.race([seen, later()])));
      },
    });
  },

  /** Counts lines of `seq` while the connection is cut. */
  async countThroughCuts(url: string, cuts: number): Promise<{ lines: number; wrong: string | null }> {
    const env = await connect(`${url}/?tag=count`);
    const process = await env.spawn(["seq", "1", "1000000000"], { stdin: "ignore" });
    const cutting = (async () => {
      for (let count = 0; count < cuts; count += 1) {
        await new Promise((resolve) => setTimeout(resolve, (count * 17) % 50));
        await cut("count");
      }
      await process.terminate();
    })();
    const decoder = new TextDecoder();
    let [lines, rest, wrong]: [number, string, string | null] = [0, "", null];
    for await (const chunk of process.stdout) {
      const parts = (rest + decoder.decode(chunk, { stream: true })).split("\n");
      rest = parts.pop() ?? "";
      for (const part of parts) {
        lines += 1;
        if (part !== String(lines)) {
          wrong ??= `line ${lines} is ${part}`;
        }
      }
    }
    await cutting;
    await env.close();
    return { lines, wrong };
  },

  async connectFails(url: string): Promise<string> {
    try {
      await connect(url);
      return "connected";
    } catch (error) {
      return String(error);
    }
  },
});

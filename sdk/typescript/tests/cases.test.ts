/** The shared cases in Node. */

import { join } from "node:path";
import { after, before, test } from "node:test";

import { connect } from "../src/node.js";
import { applies, type CasePlace, runCase } from "./case-runner.js";
import { readCases } from "./cases.js";
import { CuttingProxy, startServer, temporaryDirectory, type TestServer } from "./support.js";

/** A stock server, against which the cases run that are marked `stock`. */
const STOCK_URL = process.env["EXEC_SERVER_TEST_STOCK_URL"];

let server: TestServer | undefined;
let proxy: CuttingProxy;

before(async () => {
  if (STOCK_URL === undefined) {
    server = await startServer(["--state-dir", join(temporaryDirectory(), "state")]);
  }
  proxy = await CuttingProxy.start(server?.url ?? STOCK_URL ?? "");
});

after(async () => {
  await proxy.stop();
  await server?.stop();
});

const offers = new Set(STOCK_URL === undefined ? ["sandbox", "proxy", "durable", "tunnels"] : ["proxy"]);

test("shared cases pass in Node", { concurrency: 4 }, async (context) => {
  const running: Promise<void>[] = [];
  for (const [index, shared] of readCases().entries()) {
    const tag = `case${index}`;
    let noticed: (() => void) | undefined;
    const onState = (state: string): void => {
      if (state === "reconnecting") {
        noticed?.();
      }
    };
    const place: CasePlace = {
      library: "node",
      offers,
      connect: () => connect(`${proxy.url}/?tag=${tag}`, { onState }),
      // A start that is sent before the client notices could not be repeated.
      cut: async () => {
        const seen = new Promise<boolean>((resolve) => (noticed = () => resolve(true)));
        // A cut during the recovery from the one before changes no state: cut again.
        const later = () => new Promise<boolean>((resolve) => setTimeout(resolve, 1_000, false));
        do {
          proxy.cut(tag);
        } while (!(await Promise.race([seen, later()])));
      },
    };
    if (applies(shared, place) && (STOCK_URL === undefined || shared.stock === true)) {
      running.push(context.test(shared.name, () => runCase(shared, place)));
    }
  }
  await Promise.all(running);
});

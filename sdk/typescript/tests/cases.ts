/** Reads the shared cases. */

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

import type { Case } from "./case-runner.js";
import { ROOT } from "./support.js";

/** All cases. */
export function readCases(): Case[] {
  const folder = join(ROOT, "sdk", "cases");
  const files = readdirSync(folder).filter((name) => name.endsWith(".json"));
  return files.sort().flatMap((name) => {
    const { cases } = JSON.parse(readFileSync(join(folder, name), "utf8")) as { cases: Case[] };
    return cases;
  });
}

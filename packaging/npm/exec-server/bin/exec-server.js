#!/usr/bin/env node
// Starts the binary of this platform, which an optional dependency holds, and exits as it does.
"use strict";

const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const platform = `@exec-server/${process.platform}-${process.arch}`;

let binary;
try {
  binary = require.resolve(`${platform}/bin/exec-server`);
} catch {
  console.error(
    `exec-server: the package ${platform} is not installed: install without --omit=optional; ` +
      "if there is none for this platform, build with cargo",
  );
  process.exit(1);
}

const child = spawn(binary, process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT"]) {
  // A terminal sends SIGINT, SIGQUIT and SIGHUP to the child as well.
  const fromTerminal = process.stdin.isTTY && /INT|QUIT|HUP/.test(signal);
  process.on(signal, () => fromTerminal || child.kill(signal));
}
child.on("error", (error) => {
  console.error(`exec-server: cannot start ${binary}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  process.exit(signal === null ? code : 128 + constants.signals[signal]);
});

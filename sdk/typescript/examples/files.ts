import { connect, NotFoundError } from "@exec-server/client";

const env = await connect(process.env.EXEC_SERVER_URL ?? "ws://127.0.0.1:8080");
const { stdout } = await env.run(["mktemp", "-d"], { check: true });
const directory = stdout.trim();

await env.fs.writeFile(`${directory}/src/a.txt`, "one\ntwo\n", { createParents: true });
console.log(await env.fs.readFile(`${directory}/src/a.txt`, { encoding: "utf8" }));
console.log(await env.fs.search(directory, "two")); // line 2 of src/a.txt
console.log(await env.fs.find(directory, { glob: "*.txt" }));
for await (const chunk of env.fs.readStream(`${directory}/src/a.txt`)) {
  console.log(chunk.byteLength); // files of any size, block by block
}
await env.fs.rm(directory, { recursive: true });
try {
  await env.fs.stat(directory);
} catch (error) {
  console.log(error instanceof NotFoundError); // true
}
await env.close();

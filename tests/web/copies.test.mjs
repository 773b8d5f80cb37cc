// Copies to other machines: what a server without a hostfile says, and the page over a server with one.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { checkAccess, checkWidth, mini, open, scratch, serve, startBrowser } from "./support.mjs";

/** Stands for `ssh`: machine `mac7` is another home on this computer, whose agent listens on 127.0.0.7. */
const SSH = `
asked=run
while [ "$1" != -- ]; do [ "$1" != -G ] || asked=config; shift; done
host=$2; ip=127.0.0.\${host#mac}
if [ $asked = config ]; then echo "hostname $ip"; exit 0; fi
HOME="$ROOT/$host"; export HOME
unset JACKALOPE_HOME JACKALOPE_SSH XDG_CACHE_HOME MODELS_DIR HF_HOME HF_HUB_CACHE RUST_LOG
[ -d "$HOME" ] || { echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255; }
exec /bin/sh -c "$(printf '%s' "$3" | sed "s/agent --start/agent --start --listen $ip/")"
`;

const MODEL = "jack/mini";

/** The process of a machine's agent, which its record names. */
function agentOf(home) {
  return JSON.parse(fs.readFileSync(path.join(home, ".jackalope/agent.json"), "utf8")).pid;
}

/** Ends the agent of a machine. */
function endAgent(home) {
  try {
    process.kill(agentOf(home), "SIGKILL");
  } catch {
    // It has no agent, or it has ended.
  }
}

/** A server with the machine `mac21`, which lacks the model. */
async function serveWithHosts(t) {
  const root = scratch(t);
  const home = path.join(root, "mac21");
  fs.mkdirSync(home);
  t.after(() => endAgent(home));
  const script = path.join(root, "ssh.sh");
  fs.writeFileSync(script, `ROOT='${root}'\n${SSH}`);
  const served = path.join(root, "served");
  fs.cpSync(mini, path.join(served, MODEL), { recursive: true });
  const port = 20_000 + (process.pid % 10_000);
  // Its rank reads the model from here until it is copied.
  const args = ["--models-dir", served, "--hosts", "mac21", "--models-from", "localhost", "--agent-port", String(port), "--control-port", "0"];
  const { url } = await serve(t, { args, env: { JACKALOPE_SSH: `/bin/sh ${script}` }, ranks: [] });
  return { url, home };
}

test("copies", { timeout: 170_000 }, async (t) => {
  await startBrowser(t);
  const { url: alone } = await serve(t);
  const { url, home } = await serveWithHosts(t);

  await t.test("a server without a hostfile says what to do", async (t) => {
    const { page } = await open(t, alone, { at: "#/models", expected: ["status of 403"] });
    await page.getByRole("button", { name: "Copy jackalope-mini to other machines" }).click();
    const dialog = page.getByRole("dialog", { name: "jackalope-mini on other machines" });
    await dialog.getByRole("alert").getByText("--hosts FILE").waitFor();
    await checkAccess(page, "the refusal");
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
  });

  await t.test("a model is copied to a machine, and a part of it is completed", async (t) => {
    const { page } = await open(t, url, { at: "#/models", size: "phone" });
    await page.getByRole("button", { name: `Copy ${MODEL} to other machines` }).focus();
    await page.keyboard.press("Enter");
    const dialog = page.getByRole("dialog", { name: "mini on other machines" });
    await dialog.locator(".row", { hasText: "mac21" }).getByText("absent").waitFor();
    await checkAccess(page, "the machines");
    await checkWidth(page, "the machines");
    await dialog.getByRole("button", { name: "Copy to mac21" }).click();
    const targets = page.getByRole("list", { name: `Machines that ${MODEL} is copied to` });
    await targets.locator("li", { hasText: "mac21" }).getByText("done").waitFor();
    await checkAccess(page, "a copy");
    await checkWidth(page, "a copy");
    const copied = path.join(home, "models_mlx", MODEL, "model.safetensors");
    assert(fs.readFileSync(copied).equals(fs.readFileSync(path.join(mini, "model.safetensors"))));
    await page.getByRole("button", { name: "Dismiss" }).click();
    await targets.waitFor({ state: "detached" });
    // A part of the model is completed from the dialog.
    fs.rmSync(copied);
    await page.getByRole("button", { name: `Copy ${MODEL} to other machines` }).click();
    await dialog.getByText("partial", { exact: true }).waitFor();
    await dialog.getByRole("button", { name: "Resume to mac21" }).click();
    await targets.locator("li", { hasText: "mac21" }).getByText("done").waitFor();
    assert(fs.existsSync(copied));
    await page.getByRole("button", { name: "Dismiss" }).click();
  });

  await t.test("a machine that fails says why, and is resumed", async (t) => {
    const models = path.join(home, "models_mlx");
    fs.rmSync(models, { recursive: true });
    const { page } = await open(t, url, { at: "#/models", size: "phone" });
    await page.getByRole("button", { name: `Copy ${MODEL} to other machines` }).click();
    const dialog = page.getByRole("dialog", { name: "mini on other machines" });
    const copy = dialog.getByRole("button", { name: "Copy to mac21" });
    await copy.waitFor();
    fs.writeFileSync(models, "no folder");
    await copy.click();
    const targets = page.getByRole("list", { name: `Machines that ${MODEL} is copied to` });
    const target = targets.locator("li", { hasText: "mac21" });
    await target.getByText("failed", { exact: true }).waitFor();
    await target.getByRole("alert").getByText("models_mlx").waitFor();
    await page.getByText("failed on 1 of 1 machine").waitFor();
    await checkAccess(page, "a copy that failed");
    await checkWidth(page, "a copy that failed");
    fs.rmSync(models);
    await page.getByRole("button", { name: "Resume" }).click();
    await target.getByText("done", { exact: true }).waitFor();
    assert.equal(await target.getByRole("alert").count(), 0);
    await page.getByRole("button", { name: "Dismiss" }).click();
    await targets.waitFor({ state: "detached" });
  });

  await t.test("a copy is cancelled and resumed", async (t) => {
    fs.rmSync(path.join(home, "models_mlx"), { recursive: true });
    const { page } = await open(t, url, { at: "#/models" });
    await page.getByRole("button", { name: `Copy ${MODEL} to other machines` }).click();
    const dialog = page.getByRole("dialog", { name: "mini on other machines" });
    const copy = dialog.getByRole("button", { name: "Copy to mac21" });
    await copy.waitFor();
    // Its agent answers nothing, so that the copy does not end by itself.
    process.kill(agentOf(home), "SIGSTOP");
    await copy.click();
    const targets = page.getByRole("list", { name: `Machines that ${MODEL} is copied to` });
    const target = targets.locator("li", { hasText: "mac21" });
    await target.getByText("running", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Cancel", exact: true }).click();
    await target.getByText("cancelled", { exact: true }).waitFor();
    await checkAccess(page, "a cancelled copy");
    process.kill(agentOf(home), "SIGCONT");
    await page.getByRole("button", { name: "Resume" }).click();
    await target.getByText("done", { exact: true }).waitFor();
    assert(fs.existsSync(path.join(home, "models_mlx", MODEL, "model.safetensors")));
  });
});

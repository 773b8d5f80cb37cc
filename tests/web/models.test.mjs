// Models: loading and unloading, whether they fit, deleting, and a download with an interruption.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { startHub } from "./hub.mjs";
import { ask, checkAccess, mini, open, picture, scratch, serve, startBrowser } from "./support.mjs";

const REPO = "jack/hub-mini";

test("models", { timeout: 170_000 }, async (t) => {
  await startBrowser(t);
  const folder = scratch(t);
  for (const name of ["large", "small"]) fs.cpSync(mini, path.join(folder, name), { recursive: true });
  const hub = await startHub(t, mini, REPO);
  const args = ["--models-dir", folder, "--default", "large"];
  const { url } = await serve(t, { args, env: { HF_ENDPOINT: hub.url, HF_HUB_OFFLINE: "", NO_PROXY: "*" } });
  const row = (page, name) => page.locator(".row", { has: page.locator(".model-name", { hasText: name }) });

  await t.test("models are loaded, unloaded and checked for memory", async (t) => {
    const { page } = await open(t, url, { at: "#/models" });
    const small = row(page, "small");
    await small.getByText("unloaded").waitFor();
    await small.getByRole("button", { name: "Load", exact: true }).click();
    await small.getByText("ready").waitFor();
    await small.getByText("on this machine").waitFor();
    await small.getByRole("button", { name: "Does it fit?" }).click();
    const dialog = page.getByRole("dialog", { name: "Memory of small" });
    await dialog.getByText("It fits.").waitFor();
    await dialog.getByText(/needs [\d.]+ \wiB of [\d.]+ GiB; other models take [\d.]+ \wiB/).waitFor();
    await checkAccess(page, "a dialog");
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
    await small.getByRole("button", { name: "Unload" }).click();
    await small.getByText("unloaded", { exact: true }).first().waitFor();
  });

  await t.test("a download is cancelled in the middle, resumed, and served", async (t) => {
    const { page } = await open(t, url, { at: "#/models" });
    await page.getByLabel("Model on the hub").fill(REPO);
    await page.getByRole("button", { name: "Download" }).click();
    const pull = page.locator(".row", { has: page.getByRole("button", { name: /^(Cancel|Dismiss|Resume)$/ }) });
    const bar = page.getByRole("progressbar", { name: `Download of ${REPO}` });
    await page.waitForFunction((name) => {
      const shown = document.querySelector(`[role=progressbar][aria-label="Download of ${name}"]`);
      return 40 <= Number(shown?.getAttribute("aria-valuenow") ?? 0);
    }, REPO);
    await checkAccess(page, "a download");
    await picture(page, "web-models");
    // The download is the server's: another page shows it too.
    const other = await open(t, url, { at: "#/models" });
    await other.page.getByRole("progressbar", { name: `Download of ${REPO}` }).waitFor();
    await pull.getByRole("button", { name: "Cancel" }).click();
    await pull.getByText("cancelled").waitFor();
    assert(Number(await bar.getAttribute("aria-valuenow")) < 100);
    hub.holdsBack = false;
    await pull.getByRole("button", { name: "Resume" }).click();
    await pull.getByText("done").waitFor();
    // The header of the tensors is asked for first, from byte 0 to a limit.
    const downloads = hub.ranges.filter((range) => !/^bytes=0-\d+$/.test(range ?? ""));
    assert.equal(downloads.length, 2, hub.ranges.join(", "));
    assert.match(downloads[1], /^bytes=[1-9]\d*-$/, "it continues with the bytes that are on disk");
    await row(page, REPO).getByText("unloaded").waitFor();
    const answer = await ask(url, "POST", "/v1/chat/completions", { model: REPO, messages: [{ role: "user", content: "Hello" }], max_tokens: 5 });
    assert.equal(answer.status, 200, JSON.stringify(answer.body));
    await page.getByRole("button", { name: "Dismiss" }).click();
    await bar.waitFor({ state: "detached" });
  });

  await t.test("a download that fails says why", async (t) => {
    const { page } = await open(t, url, { at: "#/models" });
    await page.getByLabel("Model on the hub").fill("jack/<img src=x onerror=alert(1)>");
    await page.getByRole("button", { name: "Download" }).click();
    await page.locator(".row .problem").waitFor();
    assert.equal(await page.locator("img[onerror]").count(), 0);
    await page.getByRole("button", { name: "Dismiss" }).click();
  });

  await t.test("a model is deleted after a question, unless it is in use", async (t) => {
    const { page } = await open(t, url, { at: "#/models", expected: ["status of 400"] });
    await page.getByRole("button", { name: "Delete large" }).click();
    await page.getByRole("button", { name: "Delete its files" }).click();
    await page.getByRole("dialog").getByRole("alert").waitFor();
    await page.getByRole("button", { name: "Cancel", exact: true }).click();
    await page.getByRole("button", { name: "Delete small" }).click();
    await page.getByRole("button", { name: "Delete its files" }).click();
    await row(page, "small").waitFor({ state: "detached" });
    assert(!fs.existsSync(path.join(folder, "small")));
    assert(fs.existsSync(path.join(folder, "large")));
  });
});

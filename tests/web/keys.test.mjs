// Keys: the page asks for one, users see less than administrators, and keys are created and revoked.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { ask, checkAccess, checkWidth, mini, open, picture, scratch, serve, show, startBrowser } from "./support.mjs";

test("keys", { timeout: 170_000 }, async (t) => {
  await startBrowser(t);
  const file = path.join(scratch(t), "keys.json");
  const keys = [
    { name: "ops", key: "sk-ops", admin: true },
    { name: "team", key: "sk-team", requests_per_minute: 600, cache_group: "all" },
  ];
  fs.writeFileSync(file, JSON.stringify({ keys }), { mode: 0o600 });
  const { url } = await serve(t, { args: ["--model", mini, "--api-keys", file] });
  const refused = ["status of 401", "status of 403"];

  const enter = async (page, key) => {
    await page.getByLabel("API key").fill(key);
    await page.getByRole("button", { name: "Continue" }).click();
  };

  await t.test("the page asks for a key, and keeps it out of addresses and stores", async (t) => {
    const { page, requests } = await open(t, url, { expected: refused });
    await page.getByText("This server requires a key.").waitFor();
    await checkAccess(page, "the question for a key");
    await enter(page, "sk-wrong");
    await page.getByText("does not accept this key").waitFor();
    await enter(page, "sk-team");
    await page.getByText("this machine").first().waitFor();
    await page.reload();
    await page.getByText("this machine").first().waitFor();
    assert(!requests.some((it) => it.includes("sk-")), "no key is in an address");
    assert(!(await page.evaluate(() => JSON.stringify(localStorage))).includes("sk-"));
    await show(page, "Requests");
    await page.getByText("for administrators").waitFor();
    await show(page, "Keys");
    await page.getByText("for administrators").waitFor();
    await show(page, "Chat");
    await page.getByLabel("Message", { exact: true }).fill("Hello");
    await page.getByLabel("Message", { exact: true }).press("Enter");
    await page.locator(".figures", { hasText: "tokens/s" }).waitFor();
    await page.getByRole("button", { name: "Forget the key" }).click();
    await page.getByText("This server requires a key.").waitFor();
  });

  await t.test("an administrator creates a key, limits it and revokes it", async (t) => {
    const { page } = await open(t, url, { expected: [...refused, "status of 400"], at: "#/keys" });
    await enter(page, "sk-ops");
    const row = (name) => page.locator(".row", { has: page.getByText(name, { exact: true }) });
    await row("team").getByText(/600 requests\/min · cache group all · 1 request, \d+ tokens/).waitFor();
    await page.getByRole("button", { name: "New key" }).click();
    await page.getByLabel("Name").fill("team");
    await page.getByRole("button", { name: "Create" }).click();
    await page.getByRole("alert").getByText("name of another one").waitFor();
    await page.getByLabel("Name").fill("carol");
    await page.getByLabel("Requests per minute").fill("3");
    await checkAccess(page, "a new key");
    await page.getByRole("button", { name: "Create" }).click();
    const key = await page.getByTestId("new-key").innerText();
    assert.match(key, /^sk-[0-9a-f]{48}$/);
    await page.getByRole("button", { name: "Close" }).click();
    const stored = fs.readFileSync(file, "utf8");
    assert(stored.includes("carol") && !stored.includes(key), "only its hash is stored");
    assert.equal((await ask(url, "GET", "/v1/models", undefined, key)).status, 200);
    await row("carol").getByText("3 requests/min").waitFor();
    await picture(page, "web-keys");
    await row("carol").getByRole("button", { name: "Change" }).click();
    await page.getByLabel("Requests per minute").fill("");
    await page.getByLabel("Tokens per minute").fill("5000");
    await page.getByRole("button", { name: "Save" }).click();
    await row("carol").getByText("5,000 tokens/min").waitFor();
    // What the page does not show stays as it was.
    await row("team").getByRole("button", { name: "Change" }).click();
    await page.getByRole("button", { name: "Save" }).click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
    assert.equal(JSON.parse(fs.readFileSync(file, "utf8")).keys[1].cache_group, "all");
    await row("carol").getByRole("button", { name: "Revoke" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
    await row("carol").waitFor({ state: "detached" });
    assert.equal((await ask(url, "GET", "/v1/models", undefined, key)).status, 401);
    await page.setViewportSize({ width: 360, height: 740 });
    await checkWidth(page, "keys on a phone");
    await checkAccess(page, "keys on a phone");
  });
});

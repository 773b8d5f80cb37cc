// Every view over a real server of two ranks: what it shows, without errors, on every size, accessibly.

import assert from "node:assert/strict";
import { test } from "node:test";
import { TALKATIVE, ask, checkAccess, checkWidth, open, picture, say, serve, show, startBrowser, talkative } from "./support.mjs";

const VIEWS = ["Overview", "Chat", "Models", "Requests", "Machines", "Keys"];

/** Size of everything that is loaded before the page is shown, in bytes. */
const LOADED_BYTES_MAX = 300_000;

const chat = (url, content, more) => ask(url, "POST", "/v1/chat/completions", { messages: [{ role: "user", content }], ...more });

/** Gives the server something to show. */
async function work(url) {
  await Promise.all([
    chat(url, "Tell me about rabbits.", { ...TALKATIVE, max_tokens: 300 }),
    chat(url, "Tell me about antlers.", { ...TALKATIVE, max_tokens: 150 }),
    chat(url, "Hello", { max_tokens: 20 }),
  ]);
}

test("views", { timeout: 170_000 }, async (t) => {
  await startBrowser(t);
  const { url } = await serve(t);
  await work(url);

  await t.test("the page loads three files of its own origin under a strict policy", async (t) => {
    const { page, requests } = await open(t, url);
    await page.getByText("this machine").first().waitFor();
    const paths = requests.map((it) => new URL(it).pathname);
    const files = paths.filter((it) => it === "/" || it.startsWith("/assets/"));
    assert.deepEqual([...new Set(files)].sort(), ["/", "/assets/app.css", "/assets/app.js", "/assets/icon.svg"]);
    const [document, script] = await Promise.all([fetch(`${url}/`, { headers: { accept: "text/html" } }), fetch(`${url}/assets/app.js`)]);
    const policy = document.headers.get("content-security-policy");
    assert(!policy.includes("unsafe") && policy.includes("default-src 'none'"), policy);
    assert.equal(document.headers.get("x-content-type-options"), "nosniff");
    const sizes = await Promise.all([document.text(), script.text(), (await fetch(`${url}/assets/app.css`)).text()]);
    const total = sizes.reduce((sum, it) => sum + it.length, 0);
    assert(total < LOADED_BYTES_MAX, `${total} bytes`);
    const paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
    t.diagnostic(`first paint after ${Math.round(paint)} ms, ${total} bytes`);
  });

  await t.test("the overview shows machines, ranks, links, memory and rates", async (t) => {
    const { page } = await open(t, url);
    await page.getByRole("img", { name: /Cluster of 1 machine.*rank 0 of jackalope-mini.*heads 0–3.*rank 1/ }).waitFor();
    await page.getByRole("img", { name: /rank 0 of jackalope-mini.* connected over tcp; rank 1/ }).waitFor();
    await page.getByText(/between ranks [\d.]+ Gbit\/s/).waitFor();
    await page.getByRole("img", { name: /this machine: .* weights, .* KV cache/ }).waitFor();
    const generated = page.locator(".tile", { hasText: "Generated" });
    assert.match(await generated.innerText(), /4\d\d tokens/);
    await page.getByText("No rank has been lost").waitFor();
    let seen = false;
    const chats = Promise.all(["foxes", "owls", "hares"].map(async (it) => {
      // Again and again: the page asks once a second, and an answer may take less.
      while (!seen) await chat(url, `Tell me about ${it}.`, { ...TALKATIVE, max_tokens: 900 });
    }));
    t.after(() => { seen = true; });
    await page.locator(".tile", { hasText: "Running" }).getByText("3", { exact: true }).waitFor();
    await page.getByRole("img", { name: /Tokens per second in the last ten minutes, now [1-9]/ }).waitFor();
    await picture(page, "web-overview");
    seen = true;
    await chats;
  });

  await t.test("the transport and the RDMA devices of a rank are shown", async (t) => {
    const { page } = await open(t, url);
    await page.getByRole("img", { name: /connected over tcp/ }).waitFor();
    await page.route("**/v1/cluster*", async (route) => {
      const answer = await (await route.fetch()).json();
      const [first, second] = answer.machines[0].ranks;
      Object.assign(first, { transport: "jaccl", rdma: ["rdma_en5", "rdma_en4"] });
      Object.assign(second, { transport: "jaccl", rdma: ["rdma_en3", "rdma_en4", "rdma_en5"] });
      await route.fulfill({ json: answer });
    });
    await page.getByRole("img", { name: /connected over jaccl rdma_en5 rdma_en4; rank 1/ }).waitFor();
    await page.locator(".graph").getByText("jaccl rdma_en5 rdma_en4", { exact: true }).waitFor();
    await page.locator(".graph").getByText("jaccl rdma_en3 rdma_en4 rd…", { exact: true }).waitFor();
    await page.getByRole("link", { name: "Machines" }).click();
    await page.getByRole("cell", { name: "jaccl rdma_en3 rdma_en4 rdma_en5", exact: true }).waitFor();
  });

  await t.test("temperature, power and GPU load are shown where a machine reports them", async (t) => {
    const { page } = await open(t, url);
    await page.getByRole("img", { name: /this machine: .* weights/ }).waitFor();
    const reported = (await ask(url, "GET", "/v1/cluster")).body.machines[0];
    for (const field of ["thermal", "cpu_watts", "gpu_watts", "gpu_percent"]) assert(field in reported, field);
    await page.route("**/v1/cluster*", async (route) => {
      const answer = await (await route.fetch()).json();
      Object.assign(answer.machines[0], { thermal: "71 °C", cpu_watts: null, gpu_watts: 590.6, gpu_percent: 98 });
      await route.fulfill({ json: answer });
    });
    await page.locator(".memory").getByText("71 °C · GPU 591 W · GPU 98 %", { exact: true }).waitFor();
    await page.getByRole("link", { name: "Machines" }).click();
    await page.locator(".view-machines").getByText("71 °C · GPU 591 W · GPU 98 %", { exact: true }).waitFor();
  });

  await t.test("requests are listed with their times, filtered and explained", async (t) => {
    const { page } = await open(t, url, { at: "#/requests" });
    const rows = page.locator(".fall");
    await rows.nth(2).waitFor();
    await rows.nth(0).getByRole("button").click();
    await page.getByText(/first token after/).waitFor();
    await page.getByLabel("Search").fill("no such request");
    await page.getByText("No request.").waitFor();
    await page.getByLabel("Search").fill("jackalope");
    await page.getByLabel("Status").selectOption("error");
    await page.getByText("No request.").waitFor();
    await page.getByLabel("Status").selectOption("");
    assert(3 <= (await rows.count()));
  });

  await t.test("an open request is listed, and can be cancelled", async (t) => {
    const { page } = await open(t, url);
    await show(page, "Chat");
    await talkative(page, { max_tokens: 1900 });
    await say(page, "Go on for ever.");
    await page.getByLabel("Stop").waitFor();
    await page.evaluate(() => {
      location.hash = "#/requests";
    });
    await page.getByRole("button", { name: /^Cancel / }).click();
    await page.getByText(/is cancelled\.$/).waitFor();
    await show(page, "Chat");
    await page.locator(".figures", { hasText: "cancelled" }).waitFor();
  });

  await t.test("machines list their ranks, and are examined", async (t) => {
    const { page } = await open(t, url, { at: "#/machines" });
    await page.getByRole("cell", { name: "all 4 layers, heads 4–7" }).waitFor();
    await page.getByRole("button", { name: "Examine the machines" }).click();
    await page.locator(".row.top").first().waitFor();
    await page.getByRole("region", { name: "Versions" }).getByRole("columnheader", { name: "System" }).waitFor();
    await checkAccess(page, "a diagnosis");
  });

  await t.test("the log shows the lines of all ranks, filtered, as text", async (t) => {
    const { page } = await open(t, url, { at: "#/machines" });
    await page.getByRole("button", { name: "Open the log" }).click();
    const log = page.getByRole("log");
    await page.waitForFunction(() => /rank=0[^]*rank=1|rank=1[^]*rank=0/.test(document.querySelector(".log").textContent));
    await page.getByLabel("Only lines with").fill("no such line");
    await page.waitForFunction(() => document.querySelector(".log").textContent === "");
    await page.getByLabel("Only lines with").fill("RANK=1");
    await page.waitForFunction(() => /rank=1/.test(document.querySelector(".log").textContent) && !/rank=0/.test(document.querySelector(".log").textContent));
    await checkAccess(page, "the log");
    await page.getByRole("button", { name: "Close the log" }).click();
    await log.waitFor({ state: "detached" });
  });

  await t.test("a server without keys says so", async (t) => {
    const { page } = await open(t, url, { at: "#/keys" });
    await page.getByText("requires no key").waitFor();
  });

  await t.test("the keyboard is enough", async (t) => {
    const { page } = await open(t, url);
    await page.getByText("this machine").first().waitFor();
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Chat", level: 1 }).waitFor();
    await page.getByLabel("Message", { exact: true }).waitFor();
    await page.getByLabel("Message", { exact: true }).focus();
    await page.keyboard.type("Hello");
    await page.keyboard.press("Enter");
    await page.locator(".figures", { hasText: "tokens/s" }).waitFor();
  });

  await t.test("hostile names of models, machines, keys and errors run nothing", async (t) => {
    const { page } = await open(t, url);
    const hostile = "<img src=x onerror=alert('name')><script>alert('script')</script>";
    // Every text of the server's answers, but for the states that the page decides by.
    const words = new Set(["id", "name", "cause", "key", "model", "model_id", "default_model", "message", "error_message", "request_id", "failure", "kind", "device", "version"]);
    const spoil = (value, field) => {
      if (Array.isArray(value)) return value.map((it) => spoil(it, field));
      if (value !== null && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([name, it]) => [name, spoil(it, name)]));
      return words.has(field) ? hostile : value;
    };
    for (const where of ["**/v1/cluster*", "**/v1/status", "**/requests?*", "**/errors"]) {
      await page.route(where, async (route) => {
        const answer = spoil(await (await route.fetch()).json(), "");
        if (answer.models) answer.recoveries = [{ model: hostile, at: answer.time - 9, rank: 1, cause: hostile, seconds: 2 }];
        if (answer.errors) answer.errors.push({ timestamp: 0, request_id: hostile, kind: hostile, key: hostile, code: hostile, status: 500, message: `${hostile}\nhint: ${hostile}` });
        await route.fulfill({ json: answer });
      });
    }
    await page.reload();
    for (const view of VIEWS.filter((it) => it !== "Keys")) {
      await show(page, view);
      await page.getByText(hostile.slice(0, 12)).first().waitFor({ state: "attached" });
      assert.equal(await page.locator("img[onerror], #app script").count(), 0, view);
    }
  });

  await t.test("axe finds what is wrong", async (t) => {
    const { page } = await open(t, url);
    await page.evaluate(() => {
      const image = document.createElement("img");
      image.src = "data:,";
      document.body.append(image);
    });
    await assert.rejects(checkAccess(page, "an image without words"), /image-alt/);
  });

  for (const [size, dark] of [
    ["wide", false],
    ["wide", true],
    ["phone", false],
    ["phone", true],
  ]) {
    await t.test(`every view is accessible and fits: ${size}, ${dark ? "dark" : "light"}`, async (t) => {
      const { page } = await open(t, url, { size, dark });
      await page.getByText("this machine").first().waitFor();
      for (const view of VIEWS) {
        await show(page, view);
        if (view === "Requests") await page.locator(".fall").first().waitFor();
        if (view === "Machines") await page.getByRole("cell").first().waitFor();
        if (view === "Keys") await page.getByText("requires no key").waitFor();
        const what = `${view}, ${size}, ${dark ? "dark" : "light"}`;
        await checkWidth(page, what);
        await checkAccess(page, what);
        if (dark && size === "wide" && view === "Requests") await picture(page, "web-requests");
        if (dark && size === "phone" && view === "Overview") await picture(page, "web-phone");
      }
    });
  }
});

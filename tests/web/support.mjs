// Starts real servers and a real browser, and checks what every page must fulfil.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import fs from "node:fs";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import readline from "node:readline";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const here = path.dirname(fileURLToPath(import.meta.url));
export const root = path.resolve(here, "../..");
export const mini = path.join(root, "models/jackalope-mini");
const images = path.join(root, "docs/images");
const axe = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Longest wait for a server that starts, and for anything a page is to show, in milliseconds. */
const START_MS = 180_000;
export const WAIT_MS = 60_000;

/** Largest screenshot, in bytes. */
const IMAGE_BYTES_MAX = 150_000;

/** Makes the shipped model write on, whatever it wants to say: its special tokens are never sampled. */
export const TALKATIVE = { logit_bias: { 0: -100, 1: -100, 2: -100 }, temperature: 0 };

function program() {
  const named = process.env.JACKALOPE_BIN;
  const all = named ? [path.resolve(root, named)] : ["release", "debug"].map((kind) => path.join(root, "target", kind, "jackalope"));
  const found = all.find((it) => fs.existsSync(it));
  assert(found, `there is no server to test: none of ${all} exists\nhint: cargo build`);
  return found;
}

/** A folder that is gone at the end of the test. */
export function scratch(t) {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), "jackalope-web-"));
  t.after(() => fs.rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** A server on a free port, of two ranks unless `ranks` says otherwise. It ends with the test. */
export async function serve(t, { args = ["--model", mini], ranks = ["--ranks", "2"], env = {}, bin = program() } = {}) {
  const home = scratch(t);
  const clean = { PATH: process.env.PATH, HOME: home, JACKALOPE_HOME: path.join(home, ".jackalope"), HF_HUB_OFFLINE: "1" };
  const child = spawn(bin, ["serve", ...args, ...ranks, "--port", "0", "--json"], {
    env: { ...clean, ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const log = [];
  child.stderr.on("data", (data) => log.push(data));
  const ended = new Promise((resolve) => child.once("exit", resolve));
  t.after(async () => {
    child.kill("SIGINT");
    const timer = setTimeout(() => child.kill("SIGKILL"), 15_000);
    await ended;
    clearTimeout(timer);
  });
  const ready = new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("the server was not ready in time")), START_MS);
    readline.createInterface({ input: child.stdout }).once("line", (line) => {
      clearTimeout(timer);
      resolve(JSON.parse(line));
    });
    ended.then((code) => {
      clearTimeout(timer);
      reject(new Error(`the server ended with ${code}: ${Buffer.concat(log)}`));
    });
  });
  const { url } = await ready;
  return { url: url.replace(/\/$/, ""), home, child };
}

/**
 * A copy of the program whose ranks start only while `hold` does not exist, so that a test decides how
 * long a recovery takes.
 */
export function programThatWaits(t) {
  const dir = scratch(t);
  const real = program();
  const [bin, hold] = [path.join(dir, "jackalope"), path.join(dir, "hold")];
  try {
    fs.linkSync(real, bin);
  } catch {
    fs.copyFileSync(real, bin);
  }
  const rank = path.join(path.dirname(real), "jackalope-rank");
  fs.writeFileSync(path.join(dir, "jackalope-rank"), `#!/bin/sh\nwhile [ -e '${hold}' ]; do sleep 0.05; done\nexec '${rank}' "$@"\n`, { mode: 0o755 });
  return { bin, hold };
}

let browser = null;

export async function startBrowser(t) {
  browser ??= await chromium.launch({
    executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
  t.after(async () => {
    await browser?.close();
    browser = null;
  });
}

export const SIZES = { wide: { width: 1360, height: 850 }, phone: { width: 360, height: 740 } };

/**
 * A page of its own context. At the end of the test, it must have asked no other origin for anything,
 * broken no policy, run no foreign script and reported no error but the `expected` ones.
 */
export async function open(t, url, { size = "wide", dark = false, expected = [], at = "" } = {}) {
  const context = await browser.newContext({ viewport: SIZES[size], colorScheme: dark ? "dark" : "light", acceptDownloads: true });
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT_MS);
  const problems = [];
  const requests = [];
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    problems.push(`a script ran: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("console", (line) => {
    const text = line.text();
    if (line.type() === "error" && !expected.some((it) => text.includes(it))) problems.push(`console: ${text}`);
  });
  page.on("request", (request) => {
    requests.push(request.url());
    const { protocol, origin } = new URL(request.url());
    if (protocol !== "data:" && protocol !== "blob:" && origin !== new URL(url).origin) problems.push(`asked ${request.url()}`);
  });
  t.after(async () => {
    // The page goes on asking: an answer that a route still waits for when the page closes is no failure.
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await context.close();
    assert.deepEqual(problems, []);
  });
  await page.goto(`${url}/${at}`);
  return { page, requests };
}

/** Shows a view and waits until it has its data. */
export async function show(page, name) {
  await page.getByRole("navigation", { name: "Views" }).getByRole("link", { name, exact: true }).click();
  await page.getByRole("heading", { name, level: 1 }).waitFor();
}

/** Fails if axe finds anything serious. */
export async function checkAccess(page, what) {
  // The page's own policy refuses inline scripts, which this one is not: the debugger runs it.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter((it) => ["serious", "critical"].includes(it.impact));
  const words = serious.map((it) => `${it.id}: ${it.help}\n    ${it.nodes.map((node) => `${node.html}\n      ${node.any.map((any) => any.message).join("; ")}`).join("\n    ")}`);
  assert.deepEqual(words, [], what);
}

/** Fails if the page is wider than its window. */
export async function checkWidth(page, what) {
  const excess = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert(excess <= 0, `${what} is ${excess} pixels too wide`);
}

/** Writes a screenshot for the documents, if they are to be written anew. */
export async function picture(page, name) {
  const shot = await page.screenshot({ animations: "disabled" });
  assert(shot.length <= IMAGE_BYTES_MAX, `the screenshot ${name} has ${shot.length} bytes`);
  if (!process.env.SCREENSHOTS) return;
  fs.mkdirSync(images, { recursive: true });
  fs.writeFileSync(path.join(images, `${name}.png`), shot);
}

/** Sends a request to a server. */
export async function ask(url, method, where, body, key) {
  const headers = { ...(body === undefined ? {} : { "content-type": "application/json" }), ...(key === undefined ? {} : { authorization: `Bearer ${key}` }) };
  const response = await fetch(`${url}${where}`, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await response.text();
  return { status: response.status, body: text.startsWith("{") ? JSON.parse(text) : text };
}

/** Waits until a check returns something. */
export async function until(what, check) {
  const deadline = Date.now() + WAIT_MS;
  while (true) {
    const found = await check();
    if (found) return found;
    assert(Date.now() < deadline, `${what} never happened`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Lets every chat of the page write on until its maximum length. */
export async function talkative(page, more = {}) {
  await page.route("**/v1/chat/completions", async (route) => {
    const body = { ...route.request().postDataJSON(), ...TALKATIVE, ...more };
    await route.continue({ postData: JSON.stringify(body) });
  });
}

/** Sends a message. */
export async function say(page, text) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.getByLabel("Message", { exact: true }).press("Enter");
}

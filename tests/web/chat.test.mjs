// Conversations: streaming, stopping, editing, hostile texts, and a rank that is killed in the middle.

import assert from "node:assert/strict";
import fs from "node:fs";
import { test } from "node:test";
import { ask, checkAccess, open, picture, programThatWaits, say, serve, show, startBrowser, talkative } from "./support.mjs";

const figures = (page) => page.locator(".figures", { hasText: "tokens/s" });

/** Replaces the server's answer to a chat, in as many events as there are pieces. */
async function pretend(page, deltas, usage = { prompt_tokens: 10, completion_tokens: 5, prompt_tokens_details: { cached_tokens: 5 } }) {
  await page.route("**/v1/chat/completions", (route) => {
    const chunks = deltas.map((delta) => ({ model: "m", choices: [{ index: 0, delta, finish_reason: null }] }));
    const hasCalls = deltas.some((it) => it.tool_calls);
    chunks.push({ choices: [{ index: 0, delta: {}, finish_reason: hasCalls ? "tool_calls" : "stop" }] }, { choices: [], usage });
    const body = [...chunks.map((it) => `data: ${JSON.stringify(it)}\n\n`), "data: [DONE]\n\n"].join("");
    return route.fulfill({ status: 200, contentType: "text/event-stream", body });
  });
}

const HOSTILE = [
  "<script>alert('s')</script>",
  "<img src=x onerror=alert('i')>",
  "[link](javascript:alert('l')) [data](data:text/html,<script>alert(1)</script>)",
  "![picture](https://evil.example/pixel.png)",
  "<iframe srcdoc=\"<script>alert('f')</script>\"></iframe>",
  "`<b onclick=alert(1)>` **<svg onload=alert('v')>**",
  "```html\n<script>alert('c')</script>\n```",
  "| <img src=x onerror=alert('t')> | b |\n|---|---|\n| [x](vbscript:alert(1)) | <style>*{display:none}</style> |",
  "&lt;script&gt;alert('e')&lt;/script&gt;",
].join("\n\n");

test("chat", { timeout: 170_000 }, async (t) => {
  await startBrowser(t);
  const { bin, hold } = programThatWaits(t);
  const { url } = await serve(t, { bin });

  await t.test("an answer is streamed, with its figures, and kept in the browser", async (t) => {
    const { page } = await open(t, url, { at: "#/chat" });
    await say(page, "Hello");
    await figures(page).waitFor();
    assert.match(await figures(page).innerText(), /[\d.]+ tokens\/s · \d+ tokens · first after .* · prompt \d+, \d+ % cached/);
    const answer = await page.getByLabel("Answer").locator(".markdown").innerText();
    assert(0 < answer.length);
    // The store is written when the page goes.
    await page.reload();
    await show(page, "Chat");
    assert.equal(await page.getByLabel("Answer").locator(".markdown").innerText(), answer);
    const [file] = await Promise.all([
      page.waitForEvent("download"),
      page.getByLabel("Settings").click().then(() => page.getByRole("button", { name: "Export as JSON" }).click()),
    ]);
    const saved = JSON.parse(fs.readFileSync(await file.path(), "utf8"));
    assert.deepEqual(saved.messages.map((it) => it.role), ["user", "assistant"]);
    assert.equal(saved.messages[1].content.trim(), answer);
  });

  await t.test("an answer is stopped, regenerated and asked for differently", async (t) => {
    const { page } = await open(t, url, { at: "#/chat" });
    await talkative(page, { max_tokens: 1900 });
    await say(page, "Go on for ever.");
    await page.locator(".answer .markdown").waitFor();
    await page.getByLabel("Stop").click();
    await page.locator(".figures", { hasText: "stopped" }).waitFor();
    await page.unroute("**/v1/chat/completions");
    await page.getByRole("button", { name: "Regenerate" }).click();
    await figures(page).waitFor();
    assert.equal(await page.getByLabel("Answer").count(), 1);
    await page.getByRole("button", { name: "Edit" }).click();
    await page.getByLabel("Edit the message").fill("Good morning");
    await page.getByRole("button", { name: "Send again" }).click();
    await page.locator(".bubble", { hasText: "Good morning" }).waitFor();
    await figures(page).waitFor();
    assert.equal(await page.getByLabel("Answer").count(), 1);
  });

  await t.test("the settings are sent, and the prompt of the system first", async (t) => {
    const { page } = await open(t, url, { at: "#/chat" });
    await page.getByLabel("Settings").click();
    await page.getByLabel("System prompt").fill("Be brief.");
    await page.getByLabel("Temperature").fill("0");
    await page.getByLabel("Maximum tokens").fill("7");
    await page.getByLabel("Seed").fill("3");
    await checkAccess(page, "settings of a chat");
    await page.getByLabel("Settings").click();
    const sent = page.waitForRequest("**/v1/chat/completions");
    await say(page, "Hello");
    const body = (await sent).postDataJSON();
    assert.deepEqual(body.messages, [
      { role: "system", content: "Be brief." },
      { role: "user", content: "Hello" },
    ]);
    assert.deepEqual([body.temperature, body.max_tokens, body.seed, body.stream], [0, 7, 3, true]);
    assert(!("top_p" in body) && !("tools" in body) && !("enable_thinking" in body));
    await figures(page).waitFor();
  });

  await t.test("reasoning is folded, tool calls are shown and answered", async (t) => {
    const { page } = await open(t, url, { at: "#/chat" });
    const call = (part) => ({ tool_calls: [{ index: 0, id: "call_1", function: { name: "weather", arguments: part } }] });
    await pretend(page, [{ reasoning_content: "Let me **think**." }, call('{"city":'), call('"Oslo"}')]);
    await say(page, "Weather?");
    await page.getByText("Reasoning", { exact: true }).waitFor();
    assert(!(await page.getByText("Let me").isVisible()));
    await page.getByText("Reasoning", { exact: true }).click();
    await page.locator(".reasoning strong", { hasText: "think" }).waitFor();
    await page.locator(".tool-call", { hasText: "weather" }).waitFor();
    await page.getByText('"city": "Oslo"').waitFor();
    await page.unroute("**/v1/chat/completions");
    await pretend(page, [{ content: "It is cold." }]);
    await page.getByLabel("Result of weather").fill("-3");
    const sent = page.waitForRequest("**/v1/chat/completions");
    await page.getByRole("button", { name: "Continue" }).click();
    const { messages } = (await sent).postDataJSON();
    assert.deepEqual(messages.at(-1), { role: "tool", tool_call_id: "call_1", content: "-3" });
    assert.deepEqual(messages.at(-2).tool_calls[0].function, { name: "weather", arguments: '{"city":"Oslo"}' });
    await page.getByText("It is cold.").waitFor();
  });

  await t.test("Markdown becomes elements", async (t) => {
    const { page } = await open(t, url, { at: "#/chat" });
    const text = [
      "# Counting words",
      "1. Split the text at **white space**.\n2. Count the parts &amp; return `usize`.",
      "- [x] tabs, too",
      "> The result is the same on every machine.",
      "| Text | Words |\n|---|---|\n| one two | 2 |",
      "```rust\n// Counts the words of a text.\nfn count(text: &str) -> usize {\n    text.split_whitespace().count()\n}\n```",
      "See the [documentation](https://example.com/).",
    ].join("\n\n");
    await pretend(page, text.match(/[\s\S]{1,7}/g).map((content) => ({ content })));
    await say(page, "How do I count words in Rust?");
    const answer = page.locator(".answer .markdown");
    await answer.locator("a[href='https://example.com/'][rel~=noopener]").waitFor();
    assert.equal(await answer.locator("h3").innerText(), "Counting words");
    assert.equal(await answer.locator("ol li").nth(1).innerText(), "Count the parts & return usize.");
    assert.equal(await answer.locator("li.task").innerText(), "tabs, too");
    assert.equal(await answer.locator("li.task input:checked").count(), 1);
    assert.equal(await answer.locator("td").nth(1).innerText(), "2");
    assert.equal(await answer.locator(".hl-k").first().innerText(), "fn");
    assert.equal(await answer.locator(".hl-c").first().innerText(), "// Counts the words of a text.");
    await checkAccess(page, "Markdown");
    await picture(page, "web-chat");
  });

  await t.test("hostile texts run nothing and load nothing", async (t) => {
    const { page } = await open(t, url, { at: "#/chat", expected: ["status of 400"] });
    await pretend(page, [{ reasoning_content: HOSTILE }, { content: HOSTILE }]);
    await say(page, HOSTILE);
    await page.locator(".answer > .markdown .code").first().waitFor();
    await page.getByText("Reasoning", { exact: true }).click();
    for (const tag of ["script", "iframe", "svg[onload]", "img[onerror]", "b[onclick]", "style"]) {
      assert.equal(await page.locator(`.thread ${tag}`).count(), 0, tag);
    }
    const links = await page.locator(".thread a").evaluateAll((all) => all.map((it) => it.href));
    assert(0 < links.length && links.every((it) => it.startsWith("https://")), String(links));
    // Names of conversations and errors are texts too.
    await page.unroute("**/v1/chat/completions");
    await page.route("**/v1/chat/completions", (route) => route.fulfill({ status: 400, contentType: "application/json", body: JSON.stringify({ error: { message: HOSTILE, code: "x" } }) }));
    await page.getByRole("button", { name: "New conversation" }).click();
    await say(page, "<img src=x onerror=alert('title')>");
    await page.getByRole("alert").waitFor();
    assert.equal(await page.locator("img[onerror]").count(), 0);
  });

  await t.test("a rank is killed in the middle, and the answer goes on", async (t) => {
    const { page } = await open(t, url, { at: "#/chat" });
    await talkative(page, { max_tokens: 1200 });
    // The same answer without a fault.
    await say(page, "Tell me a long story.");
    await page.locator(".figures", { hasText: "maximum length" }).waitFor();
    const whole = await page.locator(".answer .markdown").innerText();
    await page.getByRole("button", { name: "New conversation" }).click();
    await say(page, "Tell me a long story.");
    await page.locator(".answer .markdown").waitFor();
    fs.writeFileSync(hold, "");
    const { body } = await ask(url, "GET", "/v1/cluster");
    process.kill(body.machines[0].ranks[1].pid, "SIGKILL");
    await page.getByText(/^recovering, \d+ s$/).first().waitFor();
    const before = await page.locator(".answer .markdown").innerText();
    await checkAccess(page, "a recovery");
    await page.setViewportSize({ width: 900, height: 520 });
    await picture(page, "web-recovering");
    fs.rmSync(hold);
    await page.locator(".figures", { hasText: /recovered in [\d.]+ m?s/ }).waitFor();
    const after = await page.locator(".answer .markdown").innerText();
    assert(before.length < after.length && after === whole, "the answer is the same as without a fault");
    await show(page, "Overview");
    await page.getByText(/back after/).waitFor();
    await page.getByRole("img", { name: "1 recovery in the last hour" }).waitFor();
    await show(page, "Requests");
    await page.getByRole("img", { name: /waiting for ranks/ }).waitFor();
  });
});

// The official Node client against the server at JACKALOPE_URL.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";

const client = new OpenAI({
  baseURL: `${process.env.JACKALOPE_URL}/v1`,
  apiKey: "not-needed",
  maxRetries: 0,
  timeout: 120_000,
});
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Hello!" }];
const chat = { model, messages, temperature: 0, max_tokens: 40 };
const response = { model, input: "Hello!", temperature: 0, max_output_tokens: 40 };
const weather = {
  type: "function",
  name: "get_weather",
  description: "Get the current weather in a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  strict: false,
};

test("a chat is answered", async () => {
  const answer = await client.chat.completions.create(chat);
  assert.equal(answer.model, model);
  assert.ok(answer.choices[0].message.content.trim());
});

test("a streamed chat is the whole one", async () => {
  const whole = await client.chat.completions.create(chat);
  let text = "";
  let usage;
  const stream_options = { include_usage: true };
  for await (const chunk of await client.chat.completions.create({ ...chat, stream: true, stream_options })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("a tool is called, streamed or not, and its result is heard", async () => {
  const { type, name, description, parameters } = weather;
  const tools = [{ type, function: { name, description, parameters } }];
  const question = { role: "user", content: "What is the weather in Paris?" };
  const asked = { ...chat, max_tokens: 60, tools, messages: [question] };
  const { message, finish_reason } = (await client.chat.completions.create(asked)).choices[0];
  assert.equal(finish_reason, "tool_calls");
  const streamed = await client.chat.completions.stream(asked).finalMessage();
  const told = (it) => it.tool_calls.map((call) => [call.function.name, call.function.arguments]);
  assert.deepEqual(told(streamed), told(message));
  const content = JSON.stringify({ temperature: 21, condition: "sunny" });
  const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content };
  const answer = await client.chat.completions.create({ ...asked, messages: [question, message, result] });
  assert.ok(answer.choices[0].message.content.trim());
});

test("a stream that is left is no error", async () => {
  const stream = await client.chat.completions.create({ ...chat, stream: true });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    break;
  }
});

test("a completion is answered", async () => {
  const answer = await client.completions.create({ model, prompt: "Hello", temperature: 0, max_tokens: 10 });
  assert.equal(answer.object, "text_completion");
});

test("a response is answered, kept and continued", async () => {
  const first = await client.responses.create(response);
  assert.ok(first.output_text.trim());
  assert.equal((await client.responses.retrieve(first.id)).output_text, first.output_text);
  const second = await client.responses.create({ ...response, previous_response_id: first.id });
  const input = [...messages, ...first.output, ...messages];
  const whole = await client.responses.create({ ...response, input });
  assert.equal(second.output_text, whole.output_text);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test("the response helper follows a stream", async () => {
  const whole = await client.responses.create({ ...response, tools: [weather], input: "What is the weather in Paris?" });
  const stream = client.responses.stream({ ...response, tools: [weather], input: "What is the weather in Paris?" });
  let last = -1;
  for await (const event of stream) {
    assert.equal(event.sequence_number, last + 1);
    last = event.sequence_number;
  }
  const final = await stream.finalResponse();
  const told = (it) => it.output.map((item) => [item.type, item.name, item.arguments, item.content?.[0].text]);
  assert.deepEqual(told(final), told(whole));
});

test("embeddings come in both encodings", async () => {
  const input = ["Hello!", "Good morning."];
  const packed = await client.embeddings.create({ model, input });
  const plain = await client.embeddings.create({ model, input, encoding_format: "float" });
  for (const [idx, { embedding }] of packed.data.entries()) {
    const cosine = embedding.reduce((sum, value, at) => sum + value * plain.data[idx].embedding[at], 0);
    assert.ok(Math.abs(cosine - 1) < 1e-4, `${cosine}`);
  }
});

test("an error names the parameter", async () => {
  await assert.rejects(client.chat.completions.create({ ...chat, top_p: 5 }), (err) => {
    assert.ok(err instanceof OpenAI.BadRequestError);
    assert.equal(err.param, "top_p");
    return true;
  });
});

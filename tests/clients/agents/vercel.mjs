// The AI SDK of Vercel: one answer, complete and as a stream.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
const provider = createOpenAICompatible({ name: "jackalope", baseURL: process.env.JACKALOPE_URL + "/v1", apiKey: "none" });
const model = provider("default");
const asked = { model, prompt: "Who are you?", maxOutputTokens: 30, temperature: 0 };
const whole = await generateText(asked);
let streamed = "";
for await (const piece of streamText(asked).textStream) streamed += piece;
console.log(JSON.stringify({ text: whole.text, streamed, usage: whole.usage }));

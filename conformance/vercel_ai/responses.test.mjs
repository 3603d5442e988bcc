// The Vercel AI SDK, with its OpenAI provider on the Responses API.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAI({ baseURL: process.env.ANTIPHON_URL, apiKey: "none" });
const model = provider.responses("parrot");
const getWeather = tool({ description: "The weather", inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => `snow in ${city}` });

test("text", async () => {
  assert.equal((await generateText({ model, prompt: "Hello" })).text, "You said: Hello");
});

test("stream", async () => {
  const streamed = streamText({ model, prompt: "Hello there" });
  let text = "";
  for await (const delta of streamed.textStream) text += delta;
  assert.equal(text, "You said: Hello there");
  assert.equal(await streamed.finishReason, "stop");
});

test("tool round trip, whole and streamed", async () => {
  const asked = { model, prompt: "weather?", tools: { get_weather: getWeather }, stopWhen: stepCountIs(3) };
  assert.equal((await generateText(asked)).text, "The tool says snow in Paris");
  assert.equal(await streamText(asked).text, "The tool says snow in Paris");
});

test("structured output", async () => {
  const schema = z.object({ name: z.string(), age: z.number() });
  assert.deepEqual((await generateObject({ model, prompt: "a person", schema })).object, { name: "Ada", age: 36 });
});

test("several turns", async () => {
  const first = { role: "user", content: "Hello" };
  const { response } = await generateText({ model, messages: [first] });
  const second = await generateText({ model, messages: [first, ...response.messages, { role: "user", content: "again" }] });
  assert.equal(second.text, "You said: again");
});

test("errors", async () => {
  await assert.rejects(generateText({ model: provider.responses("gpt-none"), prompt: "x", maxRetries: 0 }), { statusCode: 404 });
  await assert.rejects(generateText({ model, prompt: "break at once", maxRetries: 0 }), { statusCode: 503 });
});

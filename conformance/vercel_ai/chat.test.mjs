// The Vercel AI SDK on Chat Completions (the providers `openai` and `openai-compatible`) and on Messages (`anthropic`).
import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { cosineSimilarity, embedMany, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = process.env.ANTIPHON_URL;
const compatible = createOpenAICompatible({ name: "antiphon", baseURL, apiKey: "none", supportsStructuredOutputs: true });
const providers = {
  openai: createOpenAI({ baseURL, apiKey: "none" }).chat,
  "openai-compatible": compatible,
  anthropic: createAnthropic({ baseURL, apiKey: "none" }),
};
const getWeather = tool({ description: "The weather", inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => `snow in ${city}` });
const getTime = tool({ description: "The time", inputSchema: z.object({ zone: z.string() }), execute: async ({ zone }) => `noon in ${zone}` });

for (const [name, provider] of Object.entries(providers)) {
  const model = provider("parrot");

  describe(name, () => {
    test("text and usage", async () => {
      const answer = await generateText({ model, prompt: "Hello" });
      assert.equal(answer.text, "You said: Hello");
      assert.equal(answer.finishReason, "stop");
      assert.ok(answer.usage.outputTokens > 0);
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

    test("two calls at once", async () => {
      const asked = { model, prompt: "two tools", tools: { get_weather: getWeather, get_time: getTime } };
      for (const calls of [(await generateText(asked)).toolCalls, await streamText(asked).toolCalls]) {
        assert.deepEqual(calls.map((call) => [call.toolName, call.input]), [["get_weather", { city: "Paris" }], ["get_time", { zone: "CET" }]]);
      }
    });

    test("reasoning", { skip: name === "openai" && "the provider drops it" }, async () => {
      // Messages tells it only to those who ask for it.
      const asked = { model, prompt: "think", providerOptions: { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } } };
      assert.match((await generateText(asked)).reasoningText, /Let me see\./);
      assert.match(await streamText(asked).reasoningText, /Let me see\./);
    });

    test("structured output", { skip: name === "anthropic" && "it calls a tool named json" }, async () => {
      const schema = z.object({ name: z.string(), age: z.number() });
      assert.deepEqual((await generateObject({ model, prompt: "a person", schema })).object, { name: "Ada", age: 36 });
    });

    test("errors", async () => {
      await assert.rejects(generateText({ model: provider("gpt-none"), prompt: "x", maxRetries: 0 }), { statusCode: 404 });
      const status = name === "anthropic" ? [503, 529] : [503];
      await assert.rejects(generateText({ model, prompt: "break at once", maxRetries: 0 }), (error) => status.includes(error.statusCode));
    });

    test("an error midway", async () => {
      const errors = [];
      const streamed = streamText({ model, prompt: "break midway", maxRetries: 0, onError: ({ error }) => errors.push(error) });
      let text = "";
      for await (const delta of streamed.textStream) text += delta;
      assert.equal(text, "So far so good");
      assert.match(JSON.stringify(errors[0], Object.getOwnPropertyNames(errors[0])), /The model broke/);
    });
  });
}

test("embeddings", async () => {
  const model = compatible.textEmbeddingModel("all-minilm-l6-v2");
  const { embeddings } = await embedMany({ model, values: ["A cat sleeps.", "A kitten is asleep.", "Taxes are due in May."] });
  assert.ok(cosineSimilarity(embeddings[0], embeddings[1]) > cosineSimilarity(embeddings[0], embeddings[2]) + 0.3);
});

// openai-node's Chat Completions talk to antiphon as to the original.
import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.env.ANTIPHON_URL, apiKey: "none", maxRetries: 0 });
const model = "parrot";
const city = { type: "object", properties: { city: { type: "string" } } };
const weather = { type: "function", function: { name: "get_weather", parameters: city } };
const time = { type: "function", function: { name: "get_time", parameters: { type: "object", properties: {} } } };
const custom = { type: "custom", custom: { name: "apply" } };
const asked = (content) => [{ role: "user", content }];

for (const [question, reason, calls] of [
  ["Hello", "stop", 0],
  ["think", "stop", 0],
  ["weather", "tool_calls", 1],
  ["two tools", "tool_calls", 2],
  ["refuse", "stop", 0],
]) {
  test(`whole and by the stream helper, '${question}' is the same`, async () => {
    const whole = await client.chat.completions.create({ model, messages: asked(question), tools: [weather, time] });
    const stream = client.chat.completions.stream({ model, messages: asked(question), tools: [weather, time] });
    for await (const chunk of stream) assert.equal(chunk.object, "chat.completion.chunk");
    const final = await stream.finalChatCompletion();
    for (const { choices } of [whole, final]) {
      assert.equal(choices[0].finish_reason, reason);
      assert.equal(choices[0].message.tool_calls?.length ?? 0, calls);
    }
    assert.equal(final.choices[0].message.content || null, whole.choices[0].message.content || null);
    assert.equal(final.choices[0].message.refusal, whole.choices[0].message.refusal);
  });
}

test("a custom tool is called with text", async () => {
  const completion = await client.chat.completions.create({ model, messages: asked("patch"), tools: [custom] });
  assert.deepEqual(completion.choices[0].message.tool_calls[0].custom, { name: "apply", input: "*** free text ***" });
});

test("several choices are streamed side by side", async () => {
  const texts = ["", ""];
  const stream = await client.chat.completions.create({ model, messages: asked("Hello"), n: 2, stream: true });
  for await (const chunk of stream) texts[chunk.choices[0].index] += chunk.choices[0].delta.content ?? "";
  assert.deepEqual(texts, ["You said: Hello", "You said: Hello"]);
});

test("the usage is sent to those who ask", async () => {
  const all = [];
  const options = { stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create({ model, messages: asked("Hello"), ...options })) all.push(chunk);
  assert.deepEqual(all.at(-1).choices, []);
  assert.equal(all.at(-1).usage.completion_tokens, 3);
});

test("structured output is parsed", async () => {
  const format = zodResponseFormat(z.object({ name: z.string(), age: z.number() }), "person");
  const parsed = await client.chat.completions.parse({ model, messages: asked("a person"), response_format: format });
  assert.deepEqual(parsed.choices[0].message.parsed, { name: "Ada", age: 36 });
});

for (const stream of [false, true]) {
  test(`runTools runs a tool, ${stream ? "streamed" : "whole"}`, async () => {
    const run = async ({ city }) => `rain in ${city}`;
    const tools = [{ type: "function", function: { name: "get_weather", parameters: city, parse: JSON.parse, function: run } }];
    const runner = client.chat.completions.runTools({ model, messages: asked("weather?"), tools, stream });
    assert.equal(await runner.finalContent(), "The tool says rain in Paris");
  });
}

test("errors are of the SDK's classes, also in the middle", async () => {
  const create = (question, more) => client.chat.completions.create({ model, messages: asked(question), ...more });
  await assert.rejects(create("Hi", { model: "gpt-none" }), { status: 404, code: "model_not_found", param: "model" });
  await assert.rejects(create("break at once", { stream: true }), OpenAI.InternalServerError);
  await assert.rejects(client.chat.completions.retrieve("chatcmpl-1"), /v1\/responses/);
  await assert.rejects(async () => {
    for await (const chunk of await create("break midway", { stream: true })) assert.ok(chunk.choices);
  }, /The model broke/);
});

// openai-node and @openai/agents talk to antiphon as to the original.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Agent, OpenAIResponsesModel, Runner, setTracingDisabled, tool } from "@openai/agents";
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

setTracingDisabled(true);
const client = new OpenAI({ baseURL: process.env.ANTIPHON_URL, apiKey: "none", maxRetries: 0 });
const model = "parrot";
const weather = { type: "function", name: "get_weather", strict: false, parameters: { type: "object", properties: { city: { type: "string" } } } };
const time = { type: "function", name: "get_time", strict: false, parameters: { type: "object", properties: {} } };
const tools = [weather, time, { type: "custom", name: "apply" }];
const person = z.object({ name: z.string(), age: z.number() });

for (const [question, kinds] of [
  ["Hello", ["message"]],
  ["think", ["reasoning", "message"]],
  ["weather", ["function_call"]],
  ["two tools", ["function_call", "function_call"]],
  ["patch", ["custom_tool_call"]],
  ["refuse", ["message"]],
]) {
  test(`the stream helper follows '${question}'`, async () => {
    const stream = client.responses.stream({ model, input: question, tools });
    for await (const event of stream) assert.ok(event.type);
    const final = await stream.finalResponse();
    assert.equal(final.status, "completed");
    assert.deepEqual(final.output.map((item) => item.type), kinds);
  });
}

test("structured output is parsed", async () => {
  const parsed = await client.responses.parse({ model, input: "a person", text: { format: zodTextFormat(person, "person") } });
  assert.deepEqual(parsed.output_parsed, { name: "Ada", age: 36 });
});

test("a tool round trip, its items, and deletion", async () => {
  const first = await client.responses.create({ model, input: "weather", tools });
  const output = { type: "function_call_output", call_id: first.output[0].call_id, output: "sun" };
  const second = await client.responses.create({ model, previous_response_id: first.id, input: [output], tools });
  assert.equal(second.output_text, "The tool says sun");
  const listed = [];
  for await (const item of client.responses.inputItems.list(second.id)) listed.push(item.type);
  assert.deepEqual(listed, ["function_call_output"]);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test("errors are of the SDK's classes", async () => {
  await assert.rejects(client.responses.create({ model: "gpt-none", input: "Hi" }), { status: 404, code: "model_not_found", param: "model" });
  await assert.rejects(client.responses.create({ model, input: "break at once" }), OpenAI.InternalServerError);
  const stream = client.responses.stream({ model, input: "break midway" });
  await assert.rejects(async () => {
    for await (const event of stream) assert.ok(event.type);
  }, /The model broke/);
});

test("the Agents SDK runs a tool", async () => {
  const getWeather = tool({
    name: "get_weather",
    description: "The weather in a city",
    parameters: z.object({ city: z.string() }),
    execute: async ({ city }) => `rain in ${city}`,
  });
  const agent = new Agent({ name: "a", instructions: "Be brief.", model: new OpenAIResponsesModel(client, model), tools: [getWeather] });
  assert.equal((await new Runner().run(agent, "weather?")).finalOutput, "The tool says rain in Paris");
  const streamed = await new Runner().run(agent, "Hello", { stream: true });
  for await (const event of streamed) assert.ok(event.type);
  await streamed.completed;
  assert.equal(streamed.finalOutput, "You said: Hello");
});

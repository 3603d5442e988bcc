// @anthropic-ai/sdk talks to antiphon as to the original.
import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.ANTIPHON_URL.replace(/\/v1$/, ""), apiKey: "none", maxRetries: 0 });
const ASKED = { model: "parrot", max_tokens: 1024 };
const THINKING = { thinking: { type: "enabled", budget_tokens: 1024 }, max_tokens: 4096 };
const WEATHER = {
  name: "get_weather",
  description: "The weather in a city",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const user = (content) => ({ role: "user", content });

test("a question", async () => {
  const message = await client.messages.create({ ...ASKED, messages: [user("Hello")] });
  assert.equal(message.content[0].text, "You said: Hello");
  assert.deepEqual([message.stop_reason, message.usage.input_tokens], ["end_turn", 1]);
  assert.match(message._request_id, /^req_/);
});

test("the stream helper makes the message of every kind of block", async () => {
  for (const [question, types] of [["Hello", ["text"]], ["think", ["thinking", "text"]], ["two tools", ["tool_use", "tool_use"]]]) {
    const stream = client.messages.stream({ ...ASKED, ...THINKING, tools: [WEATHER], messages: [user(question)] });
    const seen = [];
    stream.on("streamEvent", (event) => seen.push(event.type));
    const message = await stream.finalMessage();
    assert.deepEqual(message.content.map((block) => block.type), types);
    assert.deepEqual([seen[0], ...seen.slice(-2)], ["message_start", "message_delta", "message_stop"]);
  }
});

test("a tool round trip", async () => {
  const messages = [user("weather")];
  const first = await client.messages.create({ ...ASKED, messages, tools: [WEATHER] });
  const [call] = first.content;
  assert.deepEqual([first.stop_reason, call.name, call.input], ["tool_use", "get_weather", { city: "Paris" }]);
  messages.push({ role: "assistant", content: first.content });
  messages.push(user([{ type: "tool_result", tool_use_id: call.id, content: "sunny" }]));
  const second = await client.messages.create({ ...ASKED, messages, tools: [WEATHER] });
  assert.equal(second.content[0].text, "The tool says sunny");
});

test("tokens and models", async () => {
  const counted = await client.messages.countTokens({ model: "parrot", messages: [user("one two three")] });
  assert.equal(counted.input_tokens, 3);
  const names = [];
  for await (const model of client.models.list({ limit: 1 })) names.push(model.id);
  assert.ok(names.includes("parrot") && names.includes(process.env.ANTIPHON_MODEL));
});

test("errors", async () => {
  await assert.rejects(client.messages.create({ ...ASKED, model: "none", messages: [user("Hi")] }), Anthropic.NotFoundError);
  await assert.rejects(client.messages.create({ ...ASKED, max_tokens: 0, messages: [user("Hi")] }), Anthropic.BadRequestError);
  await assert.rejects(client.messages.create({ ...ASKED, messages: [user("break at once")] }), (error) => error.status === 529);
  const broken = client.messages.stream({ ...ASKED, messages: [user("break midway")] });
  await assert.rejects(broken.finalMessage(), /The model broke/);
});

test("a stream that is left", async () => {
  const stream = client.messages.stream({ ...ASKED, messages: [user("tell a story")] });
  for await (const event of stream) {
    if (event.type === "content_block_delta") break;
  }
  stream.abort();
  assert.equal((await client.messages.create({ ...ASKED, messages: [user("Hello")] })).content[0].text, "You said: Hello");
});

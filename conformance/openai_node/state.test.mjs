// openai-node and @openai/agents over what the server remembers: conversations, background responses, compaction, the WebSocket.
import assert from "node:assert/strict";
import { test } from "node:test";

import {
  Agent,
  MemorySession,
  OpenAIConversationsSession,
  OpenAIResponsesCompactionSession,
  OpenAIResponsesModel,
  OpenAIResponsesWSModel,
  Runner,
  setTracingDisabled,
  tool,
} from "@openai/agents";
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";
import WebSocket from "ws";
import { z } from "zod";

setTracingDisabled(true);
globalThis.WebSocket ??= WebSocket; // Node.js has one of its own since 22
const client = new OpenAI({ baseURL: process.env.ANTIPHON_URL, apiKey: "none", maxRetries: 0 });
const model = "parrot";
const weather = { type: "function", name: "get_weather", strict: false, parameters: { type: "object", properties: { city: { type: "string" } } } };
const getWeather = tool({
  name: "get_weather",
  description: "The weather in a city",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `rain in ${city}`,
});

const agent = (itsModel = new OpenAIResponsesModel(client, model)) => new Agent({ name: "a", model: itsModel, tools: [getWeather] });

const all = async (pages) => {
  const gathered = [];
  for await (const each of pages) gathered.push(each);
  return gathered;
};

const kinds = (items) => items.map((item) => item.type ?? "message");

test("a conversation and its items", async () => {
  const made = await client.conversations.create({ items: [{ role: "user", content: "Hi" }], metadata: { a: "b" } });
  const added = await client.conversations.items.create(made.id, { items: [{ type: "message", role: "developer", content: "Be brief." }] });
  const listed = await all(client.conversations.items.list(made.id, { order: "asc", limit: 1 }));
  assert.deepEqual(listed.map((item) => item.content[0].text), ["Hi", "Be brief."]);
  assert.deepEqual(await client.conversations.items.retrieve(added.data[0].id, { conversation_id: made.id }), listed[1]);
  assert.deepEqual(await client.conversations.items.delete(listed[1].id, { conversation_id: made.id }), made);
  assert.deepEqual((await client.conversations.update(made.id, { metadata: { c: "d" } })).metadata, { c: "d" });
  const answer = await client.responses.create({ model, input: "weather", conversation: made.id, tools: [weather] });
  assert.deepEqual(answer.conversation, { id: made.id });
  assert.deepEqual(kinds(await all(client.conversations.items.list(made.id))), ["function_call", "message", "message"]);
  assert.equal((await client.conversations.delete(made.id)).deleted, true);
  await assert.rejects(client.conversations.retrieve(made.id), OpenAI.NotFoundError);
});

test("a background response is followed again from any event", async () => {
  const events = await all(await client.responses.create({ model, input: "think", background: true, stream: true }));
  const { id } = events[0].response;
  assert.deepEqual(await all(await client.responses.retrieve(id, { stream: true, starting_after: 4 })), events.slice(5));
  const stream = client.responses.stream({ response_id: id, starting_after: 4 });
  assert.deepEqual((await all(stream)).map((event) => event.sequence_number), events.slice(5).map((event) => event.sequence_number));
  assert.equal((await stream.finalResponse()).output_text, "Done.");
});

test("a background response is cancelled, once and for all", async () => {
  const { id, status } = await client.responses.create({ model, input: "story", background: true });
  assert.equal(status, "queued");
  const cancelled = await client.responses.cancel(id);
  assert.equal(cancelled.status, "cancelled");
  assert.deepEqual(await client.responses.cancel(id), cancelled);
  assert.deepEqual(await client.responses.retrieve(id), { ...cancelled, output_text: "" });
  await client.responses.delete(id);
  await assert.rejects(client.responses.retrieve(id, { stream: true }), OpenAI.NotFoundError);
});

test("a conversation is compacted, and goes on", async () => {
  const first = await client.responses.create({ model, input: "Hello" });
  const compacted = await client.responses.compact({ model, previous_response_id: first.id });
  assert.deepEqual([compacted.object, ...kinds(compacted.output)], ["response.compaction", "message", "compaction"]);
  const next = await client.responses.create({ model, input: [...compacted.output, { role: "user", content: "bye" }] });
  assert.equal(next.output_text, "You said: bye");
});

test("a WebSocket carries a tool loop that stores nothing, and errors", async () => {
  const socket = new ResponsesWS(client);
  const turn = async (fields) => {
    socket.send({ type: "response.create", model, store: false, tools: [weather], ...fields });
    for await (const event of socket) {
      if (event.type === "message" && ["response.completed", "error"].includes(event.message.type)) return event.message;
      if (event.type === "error") return event.error.error;
    }
    return undefined;
  };
  const warm = await turn({ input: "weather", generate: false });
  const called = await turn({ input: [], previous_response_id: warm.response.id });
  const output = { type: "function_call_output", call_id: called.response.output[0].call_id, output: "sun" };
  const answered = await turn({ input: [output], previous_response_id: called.response.id });
  assert.equal(answered.response.output[0].content[0].text, "The tool says sun");
  const lost = await turn({ input: "Hi", previous_response_id: "resp_none" });
  assert.equal(lost.error.code, "previous_response_not_found");
  socket.close();
});

test("the Agents SDK keeps a session in a conversation", async () => {
  const session = new OpenAIConversationsSession({ client });
  const outputs = [];
  for (const text of ["Hello", "weather?", "bye"]) outputs.push((await new Runner().run(agent(), text, { session })).finalOutput);
  assert.deepEqual(outputs, ["You said: Hello", "The tool says rain in Paris", "You said: bye"]);
  const kept = ["message", "message", "message", "function_call", "function_call_result", "message", "message", "message"];
  assert.deepEqual(kinds(await session.getItems()), kept);
  assert.equal((await session.popItem()).content[0].text, "You said: bye");
  await session.clearSession();
});

for (const compactionMode of ["previous_response_id", "input"]) {
  test(`the Agents SDK compacts a session by ${compactionMode}`, async () => {
    const session = new OpenAIResponsesCompactionSession({
      client,
      model: "gpt-parrot", // the SDK takes only names here that could be OpenAI's
      underlyingSession: new MemorySession(),
      compactionMode,
      shouldTriggerCompaction: ({ compactionCandidateItems }) => compactionCandidateItems.length >= 3,
    });
    const outputs = [];
    for (const text of ["weather?", "Hello", "bye"]) outputs.push((await new Runner().run(agent(), text, { session })).finalOutput);
    assert.deepEqual(outputs, ["The tool says rain in Paris", "You said: Hello", "You said: bye"]);
    const kept = kinds(await session.getItems());
    assert.ok(kept.includes("compaction") && !kept.includes("function_call"), String(kept));
  });
}

test("the Agents SDK runs over a WebSocket", async () => {
  const overSocket = new OpenAIResponsesWSModel(client, model);
  const first = await new Runner().run(agent(overSocket), "weather?");
  assert.equal(first.finalOutput, "The tool says rain in Paris");
  const streamed = await new Runner().run(agent(overSocket), "Hello", { stream: true, previousResponseId: first.lastResponseId });
  for await (const event of streamed) assert.ok(event.type);
  await streamed.completed;
  assert.equal(streamed.finalOutput, "You said: Hello");
  await overSocket.close();
});

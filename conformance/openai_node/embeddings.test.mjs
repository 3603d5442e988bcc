// openai-node's embeddings, which ask for base64, and its chats that antiphon passes on.
import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.ANTIPHON_URL, apiKey: "none", maxRetries: 0 });
const model = "all-minilm-l6-v2";

test("vectors of texts", async () => {
  const { data, usage } = await client.embeddings.create({ model, input: ["Is it sunny?", "How is the weather?", "A train."] });
  assert.deepEqual(data.map(({ index, embedding }) => [index, embedding.length]), [[0, 384], [1, 384], [2, 384]]);
  const likeness = (other) => data[0].embedding.reduce((sum, value, at) => sum + value * data[other].embedding[at], 0);
  assert.ok(Math.abs(likeness(0) - 1) < 1e-4 && likeness(1) > likeness(2));
  assert.ok(usage.prompt_tokens > 10);
});

test("numbers in the place of base64", async () => {
  const { data } = await client.embeddings.create({ model, input: "A train.", encoding_format: "float" });
  assert.equal(data[0].embedding.length, 384);
});

test("tokens are refused", async () => {
  await assert.rejects(client.embeddings.create({ model, input: [[1, 2]] }), { status: 400, code: "invalid_value", param: "input" });
});

test("bare prompts name what to use", async () => {
  await assert.rejects(client.completions.create({ model: "parrot", prompt: "Hi" }), /v1\/chat\/completions/);
});

test("a chat that is passed on", async () => {
  const stream = client.chat.completions.stream({ model: "parrot-behind", messages: [{ role: "user", content: "Hello there" }] });
  const completion = await stream.finalChatCompletion();
  assert.equal(completion.choices[0].message.content, "You said: Hello there");
  assert.equal(completion.model, "parrot-behind");
});

// openai-node and @openai/agents with tools that antiphon runs: MCP servers with approvals, files, the web, code and pictures.
import assert from "node:assert/strict";
import { before, test } from "node:test";

import {
  Agent,
  OpenAIResponsesModel,
  OpenAIResponsesWSModel,
  RunState,
  Runner,
  codeInterpreterTool,
  fileSearchTool,
  hostedMcpTool,
  imageGenerationTool,
  setTracingDisabled,
  tool,
  webSearchTool,
} from "@openai/agents";
import OpenAI, { toFile } from "openai";
import WebSocket from "ws";
import { z } from "zod";

setTracingDisabled(true);
globalThis.WebSocket ??= WebSocket; // Node.js has one of its own since 22
const client = new OpenAI({ baseURL: process.env.ANTIPHON_URL, apiKey: "none", maxRetries: 0 });
const model = "parrot";
const noCode = process.env.ANTIPHON_CODE ? false : "the server can't run code here";
const almanac = { serverLabel: "almanac", serverUrl: process.env.MCP_URL };
const hosted = { type: "mcp", server_label: "almanac", server_url: process.env.MCP_URL, require_approval: "never" };
const getWeather = tool({
  name: "get_weather",
  description: "The weather in a city",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `rain in ${city}`,
});
let store;

before(async () => {
  store = (await client.vectorStores.create({ name: "Birds" })).id;
  await client.vectorStores.files.uploadAndPoll(store, await toFile(Buffer.from("Owls hunt at night."), "owls.md"));
});

const agent = (tools, modelSettings = {}, itsModel = new OpenAIResponsesModel(client, model)) =>
  new Agent({ name: "a", model: itsModel, tools, modelSettings });

const run = async (starting, input, stream, options = {}) => {
  const result = await new Runner().run(starting, input, { ...options, stream });
  if (stream) {
    for await (const event of result) assert.ok(event.type);
    await result.completed;
  }
  return result;
};

// The calls of hosted tools have one type in this SDK, and their own in `providerData`.
const raw = (result) => result.newItems.map((item) => item.rawItem);
const kinds = (result) => raw(result).map((item) => item.providerData?.type ?? item.type);

const both = (name, script, options = {}, modes = [false, true]) => {
  for (const stream of modes) test(`${name}, ${stream ? "streamed" : "whole"}`, options, () => script(stream));
};

const ways = {
  "over the previous response": async () => ({ previousResponseId: (await client.responses.create({ model, input: "Hello" })).id }),
  "over a conversation": async () => ({ conversationId: (await client.conversations.create()).id }),
  replayed: async () => ({}),
  stateless: async () => ({}),
};

test("the stream helper follows calls, whose final response is what was stored", async () => {
  const tools = [hosted, { type: "file_search", vector_store_ids: [store] }, { type: "web_search" }, { type: "image_generation" }];
  for (const [input, expected] of [
    ["forecast?", ["mcp_list_tools", "mcp_call", "message"]],
    ["search the files", ["mcp_list_tools", "file_search_call", "message"]],
    ["search the web", ["mcp_list_tools", "web_search_call", "message"]],
    ["draw a square", ["mcp_list_tools", "image_generation_call", "message"]],
  ]) {
    const stream = client.responses.stream({ model, input, tools });
    const done = [];
    for await (const event of stream) if (event.type === "response.output_item.done") done.push(event.item);
    const final = await stream.finalResponse();
    assert.deepEqual(final.output.map((item) => item.type), expected);
    assert.deepEqual(done.map((item) => item.id), final.output.map((item) => item.id));
    const { output } = await client.responses.retrieve(final.id);
    assert.deepEqual(output.map((item) => item.id), done.map((item) => item.id));
  }
});

both("an MCP server over SSE", async (stream) => {
  const server = hostedMcpTool({ ...almanac, serverUrl: process.env.MCP_SSE_URL });
  const result = await run(agent([server]), "forecast?", stream);
  assert.deepEqual(kinds(result), ["mcp_list_tools", "mcp_call", "message"]);
  assert.equal(result.finalOutput, "The tool says rain in Oslo tomorrow");
});

both("an MCP server from npm", async (stream) => {
  const result = await run(agent([hostedMcpTool({ serverLabel: "workshop", serverUrl: process.env.MCP_NPM_URL })]), "a sum of the workshop", stream);
  assert.equal(result.finalOutput, "The tool says The sum of 2 and 3 is 5.");
});

for (const [number, [way, more]] of Object.entries(ways).entries()) {
  const modes = process.env.ANTIPHON_SHORT ? [number % 2 === 1] : [false, true]; // each way whole and streamed; in a short run, in turn
  const settings = way === "stateless" ? { store: false } : {};
  both(`approvals by a callback, ${way}`, async (stream) => {
    for (const [approve, said] of [
      [true, /^The tool says a table in Oslo is booked$/],
      [false, /too late/],
    ]) {
      const asked = [];
      const onApproval = async (_, { rawItem }) => {
        asked.push(rawItem.providerData.name);
        return { approve, reason: "It is too late." };
      };
      const server = hostedMcpTool({ ...almanac, requireApproval: "always", onApproval });
      const options = await more();
      const first = await run(agent([server], settings), "book a table", stream, options);
      assert.deepEqual(asked, ["book_table"]);
      assert.match(first.finalOutput, said);
      assert.equal(kinds(first).includes("mcp_call"), approve);
    }
  }, {}, modes);

  both(`interruptions, ${way}`, async (stream) => {
    for (const [approve, said] of [
      [true, /Bergen is booked$/],
      [false, /not approve|rejected|too late/],
    ]) {
      const server = hostedMcpTool({ ...almanac, requireApproval: { never: { toolNames: ["get_forecast"] } } });
      const made = agent([server], settings);
      const options = await more();
      const first = await run(made, "both tables", stream, options);
      assert.deepEqual(first.interruptions.map((item) => item.rawItem.providerData.name), ["book_table", "book_table"]);
      const state = await RunState.fromString(made, first.state.toString());
      for (const each of state.getInterruptions()) approve ? state.approve(each) : state.reject(each, { message: "It is too late." });
      const second = await run(made, state, stream, options.previousResponseId ? { previousResponseId: first.lastResponseId } : options);
      assert.match(second.finalOutput, said);
      assert.equal(kinds(second).filter((kind) => kind === "mcp_call").length, approve ? 2 : 0);
    }
  }, {}, modes);
}

both("a turn with a function of the client and a call of the server", async (stream) => {
  const result = await run(agent([hostedMcpTool(almanac), getWeather]), "forecast and a person's word", stream);
  assert.deepEqual(kinds(result).slice(0, 4).sort(), ["function_call", "function_call_result", "mcp_call", "mcp_list_tools"]);
  assert.match(result.finalOutput, /rain in Paris/);
});

test("a run over a WebSocket", async () => {
  const overSocket = new OpenAIResponsesWSModel(client, model);
  const server = hostedMcpTool({ ...almanac, requireApproval: "always", onApproval: async () => ({ approve: true }) });
  const result = await run(agent([server], {}, overSocket), "book a table", true);
  assert.equal(result.finalOutput, "The tool says a table in Oslo is booked");
  await overSocket.close();
});

both("files", async (stream) => {
  const result = await run(agent([fileSearchTool([store], { includeSearchResults: true })]), "search the files", stream);
  const [call, message] = raw(result);
  assert.deepEqual([call.status, call.providerData.queries, call.providerData.results[0].filename], ["completed", ["when do owls hunt"], "owls.md"]);
  assert.equal(message.content[0].text, "Owls hunt at night , and so on.");
  const [citation] = message.content[0].providerData.annotations;
  assert.deepEqual([citation.type, citation.filename, citation.index], ["file_citation", "owls.md", 19]);
});

both("the web, and its page once more in a replayed history", async (stream) => {
  const made = agent([webSearchTool({ searchContextSize: "low" })]);
  const first = await run(made, "search the web", stream);
  const { text, providerData } = raw(first)[1].content[0];
  const [citation] = providerData.annotations;
  assert.equal(text.slice(citation.start_index, citation.end_index), "([birds.example](https://birds.example/owls.html))");
  const second = await run(made, [...first.history, { role: "user", content: "open the page" }], stream);
  assert.deepEqual([raw(second)[0].status, raw(second)[0].providerData.action.type], ["completed", "open_page"]);
});

both("code, whose container stays in a replayed history", async (stream) => {
  const made = agent([codeInterpreterTool({ includeOutputs: true })]);
  const first = await run(made, "make a plot", stream);
  const [call, message] = raw(first);
  assert.equal(call.providerData.outputs[0].logs.trim(), "'plot_is_made'");
  const [citation] = message.content[0].providerData.annotations;
  const content = await client.containers.files.content.retrieve(citation.file_id, { container_id: citation.container_id });
  assert.equal(await content.text(), "a plot");
  const second = await run(made, [...first.history, { role: "user", content: "wrong code" }], stream);
  const wrong = raw(second)[0].providerData;
  assert.equal(wrong.container_id, citation.container_id);
  assert.match(wrong.outputs[0].logs, /ZeroDivisionError/);
}, { skip: noCode });

both("pictures, changed in a replayed history", async (stream) => {
  const made = agent([imageGenerationTool({ partialImages: stream ? 1 : 0 })]);
  const first = await run(made, "draw a square", stream);
  const second = await run(made, [...first.history, { role: "user", content: "change the picture" }], stream);
  const [one, other] = [first, second].map((result) => raw(result)[0]);
  assert.deepEqual([one.status, one.providerData.action, other.providerData.action], ["completed", "generate", "edit"]);
  assert.notEqual(one.output ?? one.providerData.result, other.output ?? other.providerData.result);
});

// The Vercel AI SDK's provider tools, which antiphon runs: MCP servers with approvals, files, the web, code and pictures.
import assert from "node:assert/strict";
import { before, test } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const url = process.env.ANTIPHON_URL;
const sent = [];
const provider = createOpenAI({
  baseURL: url,
  apiKey: "none",
  fetch: (input, init) => {
    sent.push(JSON.parse(init.body));
    return fetch(input, init);
  },
});
const model = provider.responses("parrot");
const noCode = process.env.ANTIPHON_CODE ? false : "the server can't run code here";
const getWeather = tool({ description: "The weather", inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => `snow in ${city}` });
const mcp = (more) => ({ mcp: provider.tools.mcp({ serverLabel: "almanac", serverUrl: process.env.MCP_URL, ...more }) });
let store;

const post = async (path, body) => {
  const json = typeof body === "object" && !(body instanceof FormData);
  const headers = json ? { "content-type": "application/json" } : {};
  return (await fetch(`${url}${path}`, { method: "POST", headers, body: json ? JSON.stringify(body) : body })).json();
};

before(async () => {
  const form = new FormData();
  form.set("purpose", "assistants");
  form.set("file", new Blob(["Owls hunt at night."]), "owls.md");
  const file = await post("/files", form);
  store = (await post("/vector_stores", { name: "Birds", file_ids: [file.id] })).id;
  while ((await (await fetch(`${url}/vector_stores/${store}`)).json()).status !== "completed") await new Promise((go) => setTimeout(go, 50));
});

const whole = async (options) => {
  const { text, content, sources, files, toolResults, response, finishReason } = await generateText(options);
  return { text, content, sources, files, toolResults, response, finishReason };
};

const streamed = async (options) => {
  const result = streamText(options);
  for await (const part of result.fullStream) if (part.type === "error") throw part.error;
  const names = ["text", "content", "sources", "files", "toolResults", "response", "finishReason"];
  return Object.fromEntries(await Promise.all(names.map(async (name) => [name, await result[name]])));
};

for (const [way, ask] of Object.entries({ whole, streamed })) {
  const options = { model, maxRetries: 0, stopWhen: stepCountIs(4) };
  const name = (text) => `${text}, ${way}`;

  // A second turn, for which this SDK names what the server has by references.
  const turns = async (tools, first, second) => {
    const asked = [{ role: "user", content: first }];
    const one = await ask({ ...options, tools, messages: asked });
    const two = await ask({ ...options, tools, messages: [...asked, ...one.response.messages, { role: "user", content: second }] });
    return [one, two, sent.at(-1).input];
  };

  test(name("an MCP server, and a second turn"), async () => {
    const [one, two, input] = await turns(mcp(), "forecast?", "forecast?");
    assert.deepEqual([one.text, two.text], Array(2).fill("The tool says rain in Oslo tomorrow"));
    const [result] = one.toolResults;
    assert.deepEqual([result.toolName, result.output.name, result.output.output], ["mcp.get_forecast", "get_forecast", "rain in Oslo tomorrow"]);
    assert.ok(input.some((item) => item.type === "item_reference"));
  });

  for (const approved of [true, false]) {
    const said = approved ? /^The tool says a table in Oslo is booked$/ : /did not approve/;
    const tools = mcp({ requireApproval: "always" });
    const asked = [{ role: "user", content: "book a table" }];
    const decided = (one) => {
      const request = one.content.find((part) => part.type === "tool-approval-request");
      assert.equal(request.toolCall.toolName, "mcp.book_table");
      return [{ role: "tool", content: [{ type: "tool-approval-response", approvalId: request.approvalId, approved, providerExecuted: true }] }];
    };

    test(name(`an MCP call that is ${approved ? "approved" : "refused"}`), async () => {
      const one = await ask({ ...options, tools, messages: asked });
      assert.match((await ask({ ...options, tools, messages: [...asked, ...one.response.messages, ...decided(one)] })).text, said);
    });

    test(name(`the same over the previous response, ${approved}`), async () => {
      const one = await ask({ ...options, tools, messages: asked });
      const providerOptions = { openai: { previousResponseId: one.response.id } };
      const messages = [...one.response.messages, ...decided(one)];
      assert.match((await ask({ ...options, tools, messages, providerOptions })).text, said);
    });
  }

  test(name("a turn with a function of the client and a call of the server"), async () => {
    const { text } = await ask({ ...options, tools: { ...mcp(), get_weather: getWeather }, prompt: "forecast and a person's word" });
    assert.equal(text, "The tool says snow in Paris");
  });

  test(name("files, and a second turn"), async () => {
    const [one, two] = await turns({ file_search: provider.tools.fileSearch({ vectorStoreIds: [store] }) }, "search the files", "Hello");
    assert.equal(one.text, "Owls hunt at night , and so on.");
    assert.equal(one.sources[0].filename, "owls.md");
    assert.deepEqual(one.toolResults[0].output.queries, ["when do owls hunt"]);
    assert.equal(two.text, "You said: Hello");
  });

  test(name("the web, and a page that was found"), async () => {
    const [one, two] = await turns({ web_search: provider.tools.webSearch({}) }, "search the web", "open the page");
    assert.equal(one.sources[0].url, "https://birds.example/owls.html");
    assert.deepEqual(one.toolResults[0].output.action, { type: "search", query: "barn owl snow", queries: ["barn owl snow"] });
    assert.deepEqual(two.toolResults[0].output.action, { type: "openPage", url: "https://birds.example/owls.html" });
    assert.match(two.text, /^It hears a mouse/);
  });

  test(name("code, whose container stays"), { skip: noCode }, async () => {
    const [one, two] = await turns({ code_interpreter: provider.tools.codeInterpreter({}) }, "make a plot", "wrong code");
    assert.equal(one.toolResults[0].output.outputs[0].logs.trim(), "'plot_is_made'");
    assert.match(two.text, /ZeroDivisionError/);
    const ids = [one, two].map(({ content }) => content.find((part) => part.type === "tool-call").input.containerId);
    assert.ok(ids[0] && ids[0] === ids[1]);
  });

  test(name("a picture, which is changed"), async () => {
    const tools = { image_generation: provider.tools.imageGeneration({ partialImages: way === "streamed" ? 1 : 0 }) };
    const [one, two] = await turns(tools, "draw a square", "change the picture");
    const pictures = [one, two].map(({ toolResults }) => toolResults.at(-1).output.result);
    assert.ok(pictures.every((picture) => picture.startsWith("iVBOR")));
    assert.notEqual(...pictures);
  });

  test(name("stateless"), async () => {
    const tools = { ...mcp(), file_search: provider.tools.fileSearch({ vectorStoreIds: [store] }) };
    const stateless = { ...options, tools, providerOptions: { openai: { store: false } } };
    assert.equal((await ask({ ...stateless, prompt: "forecast?" })).text, "The tool says rain in Oslo tomorrow");
    assert.equal((await ask({ ...stateless, prompt: "search the files" })).text, "Owls hunt at night , and so on.");
  });
}

// RealtimeSession of @openai/agents-realtime, over its WebSocket, talks to antiphon as to the original.
import assert from "node:assert/strict";
import { EventEmitter, once } from "node:events";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { hostedMcpTool } from "@openai/agents-core";
import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession, tool } from "@openai/agents-realtime";
import { z } from "zod";

const RATE_HZ = 24_000;
const PATIENCE = { timeout: 60_000 };
const url = `${process.env.ANTIPHON_URL.replace(/^http/, "ws")}/realtime?model=parrot`;
const written = { outputModalities: ["text"] };
const byHand = { audio: { input: { turnDetection: null } } };

const silence = (ms) => new Int16Array((RATE_HZ * ms) / 1000);
const tone = (ms) => silence(ms).map((_, at) => 12_000 * Math.sin((2 * Math.PI * 440 * at) / RATE_HZ));

const getWeather = tool({
  name: "get_weather",
  description: "The weather in a city",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `rain in ${city}`,
});

// A session, and all that its server sent. What doesn't fit the client's schemas it passes over without a word: that is looked for here.
class Talk {
  errors = [];
  events = [];
  heard = [];
  #arrivals = new EventEmitter();
  #read = new Map();
  #understood = new Map();

  constructor(config, agent = {}, model = "parrot") {
    this.session = new RealtimeSession(new RealtimeAgent({ name: "a", instructions: "Be brief.", ...agent }), {
      transport: new OpenAIRealtimeWebSocket(),
      model,
      config,
    });
    this.session.transport.on("*", (event) => this.#take(event));
    this.session.on("error", ({ error }) => this.errors.push(error));
    this.session.on("audio", ({ data }) => this.heard.push(Buffer.from(data)));
  }

  #take(event) {
    if (!this.#understood.has(event.type)) {
      this.#understood.set(event.type, 0);
      this.session.transport.on(event.type, () => this.#understood.set(event.type, this.#understood.get(event.type) + 1));
    }
    this.events.push(event);
    this.#arrivals.emit("event");
  }

  // The next event of that type, whatever comes between: it may be here already.
  async next(type) {
    const number = this.#read.get(type) ?? 0;
    this.#read.set(type, number + 1);
    for (;;) {
      const events = this.events.filter((event) => event.type === type);
      if (events.length > number) return events[number];
      await once(this.#arrivals, "event");
    }
  }

  speak(...sounds) {
    for (const sound of sounds) this.session.sendAudio(sound.buffer);
  }

  get last() {
    return this.session.history.at(-1);
  }

  // What nobody has an answer for yet, such as an item asked for anew, has come before this.
  async settle() {
    this.session.transport.sendEvent({ type: "input_audio_buffer.clear" });
    await this.next("input_audio_buffer.cleared");
  }

  check() {
    for (const [type, count] of this.#understood) {
      assert.equal(count, this.events.filter((event) => event.type === type).length, `the client understands every ${type}`);
    }
    assert.equal(new Set(this.events.map((event) => event.event_id)).size, this.events.length);
    assert.ok(this.events.every((event) => typeof event.event_id === "string"));
  }
}

const dialogue = (name, config, script, agent) =>
  test(name, PATIENCE, async ({ signal }) => {
    const talk = new Talk(config, agent);
    signal.addEventListener("abort", () => talk.session.close());
    await talk.session.connect({ apiKey: "none", url });
    try {
      await script(talk, talk.session);
      await talk.settle();
    } finally {
      talk.session.close();
    }
    talk.check();
  });

const said = (item) => item.content.map((part) => part.text ?? part.transcript).join("");

dialogue("a text turn", written, async (talk, session) => {
  session.sendMessage("Hello");
  const done = await talk.next("response.done");
  assert.equal(done.response.status, "completed");
  assert.deepEqual(session.history.map((item) => [item.role, item.status, said(item)]), [
    ["user", "completed", "Hello"],
    ["assistant", "completed", "You said: Hello"],
  ]);
  assert.ok(session.usage.outputTokens > 0);
  assert.deepEqual(talk.errors, []);
});

dialogue(
  "a tool's result, and the answer to it",
  written,
  async (talk, session) => {
    session.sendMessage("weather?");
    await talk.next("response.done");
    await talk.next("response.done");
    const call = session.history.find((item) => item.type === "function_call");
    assert.deepEqual([call.name, call.arguments, call.output, call.status], ["get_weather", '{"city":"Paris"}', "rain in Paris", "completed"]);
    assert.equal(said(talk.last), "The tool says rain in Paris");
    assert.deepEqual(talk.errors, []);
  },
  { tools: [getWeather] },
);

dialogue("a spoken turn, as the client is set up from the start", undefined, async (talk, session) => {
  const ends = [];
  session.on("audio_start", () => ends.push("start"));
  session.on("audio_stopped", () => ends.push("stop"));
  talk.speak(silence(200), tone(1000), silence(1500));
  await talk.next("input_audio_buffer.speech_started");
  await talk.next("input_audio_buffer.committed");
  await talk.next("conversation.item.input_audio_transcription.completed");
  const done = await talk.next("response.done");
  await talk.settle();
  assert.equal(done.response.status, "completed");
  assert.deepEqual(session.history.map((item) => [item.role, said(item)]), [
    ["user", "Good morning."],
    ["assistant", "You said: Good morning."],
  ]);
  assert.deepEqual(ends, ["start", "stop"]);
  assert.ok(Buffer.concat(talk.heard).length > RATE_HZ, "more than half a second");
  assert.deepEqual(talk.errors, []);
});

const nobody = !process.env.ANTIPHON_QUESTION && "the server can't listen and speak";

test("a person's question, answered aloud by a real model", { ...PATIENCE, skip: nobody }, async () => {
  const model = process.env.ANTIPHON_MODEL;
  const talk = new Talk(undefined, {}, model);
  await talk.session.connect({ apiKey: "none", url: url.replace("parrot", model) });
  try {
    talk.session.transport.sendEvent({ type: "session.update", session: { type: "realtime", max_output_tokens: 40 } });
    const question = await readFile(process.env.ANTIPHON_QUESTION);
    talk.speak(Uint8Array.from(question), silence(1500));
    const heard = await talk.next("conversation.item.input_audio_transcription.completed");
    assert.match(heard.transcript.toLowerCase(), /clubs/);
    const done = await talk.next("response.done");
    await talk.settle();
    assert.ok(["completed", "incomplete"].includes(done.response.status), "a small model may go on for longer than it is let");
    assert.equal(said(talk.last), done.response.output[0].content[0].transcript);
    assert.ok(Buffer.concat(talk.heard).length > RATE_HZ, "more than half a second");
    assert.deepEqual(talk.errors, []);
  } finally {
    talk.session.close();
  }
  talk.check();
});

dialogue("turns by hand, one of them not understood", byHand, async (talk, session) => {
  for (const words of ["Good morning.", "Tell me a story.", "Stop, please."]) {
    session.sendAudio(tone(400).buffer, { commit: true });
    const heard = await talk.next("conversation.item.input_audio_transcription.completed");
    assert.equal(heard.transcript, words);
  }
  session.sendAudio(tone(400).buffer, { commit: true });
  const failed = await talk.next("conversation.item.input_audio_transcription.failed");
  assert.equal(failed.error.code, "transcription_failed");
  session.transport.requestResponse();
  assert.equal((await talk.next("response.done")).response.status, "completed");
  assert.deepEqual(talk.errors, []);
});

dialogue("speech cuts off an answer, and is answered", undefined, async (talk, session) => {
  session.sendMessage("Tell me a story");
  await talk.next("response.output_audio.delta");
  const interrupted = once(session, "audio_interrupted");
  talk.speak(tone(500));
  await interrupted;
  const done = await talk.next("response.done");
  assert.deepEqual([done.response.status, done.response.status_details.reason], ["cancelled", "turn_detected"]);
  const truncated = await talk.next("conversation.item.truncated");
  assert.equal(truncated.item_id, done.response.output[0].id);
  await talk.next("conversation.item.retrieved");
  assert.equal(talk.last.status, "incomplete");
  talk.speak(silence(1500));
  assert.equal((await talk.next("response.done")).response.status, "completed");
  assert.equal(said(talk.last), "You said: Good morning.");
  assert.deepEqual(talk.errors, []);
});

const unheeded = { audio: { input: { turnDetection: { type: "server_vad", interruptResponse: false } } } };

dialogue("the client cuts an answer off itself where the server is told not to", unheeded, async (talk, session) => {
  session.sendMessage("Tell me a story");
  await talk.next("response.output_audio.delta");
  talk.speak(tone(500));
  const done = await talk.next("response.done");
  assert.deepEqual([done.response.status, done.response.status_details.reason], ["cancelled", "client_cancelled"]);
  await talk.next("conversation.item.truncated");
  assert.deepEqual(talk.errors, []);
});

dialogue("a stop button, and a second press", undefined, async (talk, session) => {
  session.sendMessage("Tell me a story");
  await talk.next("response.output_audio.delta");
  session.interrupt();
  session.interrupt();
  assert.equal((await talk.next("response.done")).response.status, "cancelled");
  await talk.next("conversation.item.truncated");
  session.sendMessage("Hello");
  assert.equal((await talk.next("response.done")).response.status, "completed");
  assert.deepEqual(talk.errors, []);
});

dialogue("an answer out of band comes with its metadata and leaves no trace", written, async (talk, session) => {
  const input = [{ type: "message", role: "user", content: [{ type: "input_text", text: "aside" }] }];
  session.transport.requestResponse({ conversation: "none", metadata: { topic: "x" }, output_modalities: ["text"], input });
  const { response } = await talk.next("response.done");
  assert.deepEqual([response.metadata, response.conversation_id, said(response.output[0])], [{ topic: "x" }, null, "You said: aside"]);
  assert.ok(!talk.events.some((event) => event.type === "conversation.item.added"));
});

dialogue("two messages in a row are answered one after the other", written, async (talk, session) => {
  session.sendMessage("one");
  session.sendMessage("two");
  assert.equal((await talk.next("response.done")).response.status, "completed");
  assert.equal((await talk.next("response.done")).response.status, "completed");
  assert.equal(session.history.length, 4);
  assert.deepEqual(talk.errors, []);
});

dialogue("history is edited: an item deleted, one replaced in its place, one added", written, async (talk, session) => {
  session.sendMessage("Hello");
  await talk.next("response.done");
  const [question, answer] = session.history;
  const message = (itemId, text) => ({ itemId, type: "message", role: "user", status: "completed", content: [{ type: "input_text", text }] });
  session.updateHistory([message(question.itemId, "Good bye"), answer, message("item_last", "Now go")]);
  await talk.settle();
  assert.deepEqual(session.history.map((item) => said(item)), ["Good bye", "You said: Hello", "Now go"]);
  session.updateHistory((items) => items.slice(1));
  await talk.settle();
  assert.deepEqual(session.history.map((item) => said(item)), ["You said: Hello", "Now go"]);
  assert.deepEqual(talk.errors, []);
});

dialogue(
  "another agent takes over, with tools of its own",
  written,
  async (talk, session) => {
    await session.updateAgent(new RealtimeAgent({ name: "b", instructions: "Sing.", tools: [] }));
    await talk.settle();
    const told = talk.events.filter(({ type }) => type === "session.updated").map(({ session }) => session);
    assert.ok(told.some(({ tools, instructions }) => tools.length === 1 && instructions === "Be brief."));
    assert.deepEqual([told.at(-1).tools, told.at(-1).instructions], [[], "Sing."]);
    assert.deepEqual(talk.errors, []);
  },
  { tools: [getWeather] },
);

dialogue("telephone sound both ways", { audio: { input: { format: "g711_ulaw" }, output: { format: "g711_ulaw" } } }, async (talk, session) => {
  session.sendAudio(Uint8Array.from({ length: 8000 }, (_, at) => (at % 2 ? 0x00 : 0x80)).buffer);
  session.sendAudio(new Uint8Array(12_000).fill(0xff).buffer);
  const { response } = await talk.next("response.done");
  assert.deepEqual(response.audio.output.format, { type: "audio/pcmu" });
  assert.equal(said(talk.last), "You said: Good morning.");
  assert.ok(Buffer.concat(talk.heard).length > 4000, "half a second");
  assert.deepEqual(talk.errors, []);
});

dialogue("mistakes come as errors, and the session goes on", undefined, async (talk, session) => {
  const codes = () => talk.errors.map(({ error }) => error.code);
  session.transport.sendFunctionCallOutput({ id: "item_x", type: "function_call", callId: "call_none", name: "f", arguments: "{}" }, "42", false);
  await talk.next("error");
  session.sendMessage("Hello");
  assert.equal((await talk.next("response.done")).response.status, "completed");
  session.transport.updateSessionConfig({ voice: "marin" });
  await talk.next("error");
  session.transport.sendEvent({ type: "conversation.item.delete", item_id: "item_none", event_id: "mine" });
  await talk.next("error");
  assert.deepEqual(codes(), ["invalid_tool_call_id", "cannot_update_voice", "item_delete_invalid_item_id"]);
  session.sendMessage("Still there?");
  assert.equal((await talk.next("response.done")).response.status, "completed");
});

test("a model that there isn't is refused before there is a session", PATIENCE, async () => {
  const talk = new Talk();
  await assert.rejects(talk.session.connect({ apiKey: "none", url: url.replace("parrot", "gpt-none") }));
});

const almanac = (more) => hostedMcpTool({ serverLabel: "almanac", serverUrl: process.env.MCP_URL, ...more });

dialogue(
  "a call of an MCP server's tool",
  written,
  async (talk, session) => {
    const listed = [];
    session.on("mcp_tools_changed", (tools) => listed.push(...tools.map(({ name }) => name)));
    const completed = [];
    session.on("mcp_tool_call_completed", (_, __, call) => completed.push([call.name, call.status, call.output]));
    await talk.next("mcp_list_tools.completed");
    session.sendMessage("forecast?");
    await talk.next("response.mcp_call.completed");
    await talk.next("response.done");
    assert.deepEqual(listed, ["get_forecast", "book_table", "cancel_table"]);
    assert.deepEqual(completed, [["get_forecast", "completed", "rain in Oslo tomorrow"]]);
    assert.equal(said(talk.last), "The tool says rain in Oslo tomorrow");
    assert.deepEqual(talk.errors, []);
  },
  { tools: [almanac()] },
);

for (const approve of [true, false]) {
  dialogue(
    `a call of an MCP server's tool that is ${approve ? "approved" : "refused"}`,
    written,
    async (talk, session) => {
      const asked = once(session, "tool_approval_requested");
      session.sendMessage("book a table");
      const [, , request] = await asked;
      assert.equal(request.type, "mcp_approval_request");
      await talk.next("response.done");
      if (approve) await session.approve(request.approvalItem);
      else await session.reject(request.approvalItem, { message: "It is too late." });
      await talk.next("response.done");
      assert.match(said(talk.last), approve ? /^The tool says a table in Oslo is booked$/ : /It is too late/);
      assert.deepEqual(talk.errors, []);
    },
    { tools: [almanac({ requireApproval: "always" })] },
  );
}

dialogue(
  "an MCP server that is not there",
  written,
  async (talk, session) => {
    await talk.next("mcp_list_tools.failed");
    session.sendMessage("Hello");
    await talk.next("response.done");
    assert.equal(said(talk.last), "You said: Hello");
  },
  { tools: [almanac({ serverUrl: "http://127.0.0.1:9/mcp" })] },
);

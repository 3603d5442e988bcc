// RealtimeClient of openai-realtime-api, which has the logic of OpenAI's own client for the beta, talks to antiphon as to the original.
import assert from "node:assert/strict";
import { EventEmitter, once } from "node:events";
import { test } from "node:test";

import { RealtimeClient } from "openai-realtime-api";
import { WebSocket } from "ws";

const RATE_HZ = 24_000;
const url = `${process.env.ANTIPHON_URL.replace(/^http/, "ws")}/realtime`;
const written = { modalities: ["text"] };
const watched = { turn_detection: { type: "server_vad", threshold: 0.5, prefix_padding_ms: 300, silence_duration_ms: 500 } };
const weather = { name: "get_weather", description: "The weather in a city", parameters: { type: "object", properties: { city: { type: "string" } } } };

const silence = (ms) => new Int16Array((RATE_HZ * ms) / 1000);
const tone = (ms) => silence(ms).map((_, at) => 12_000 * Math.sin((2 * Math.PI * 440 * at) / RATE_HZ));

// A session and all that its server sent. The client goes on where events are missing or in a wrong order, and says so on the console alone.
class Talk {
  events = [];
  #arrivals = new EventEmitter();
  #read = new Map();

  constructor(sessionConfig) {
    this.client = new RealtimeClient({ url, apiKey: "none", model: "parrot", sessionConfig });
    this.client.conversation.debug = true;
    this.client.on("realtime.event", ({ source, event }) => {
      if (source === "client") return;
      this.events.push(event);
      this.#arrivals.emit("event");
    });
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

  ask(text) {
    this.client.sendUserMessageContent([{ type: "input_text", text }]);
  }

  speak(...sounds) {
    for (const sound of sounds) this.client.appendInputAudio(sound);
  }

  get items() {
    return this.client.conversation.getItems();
  }

  get errors() {
    return this.events.filter((event) => event.type === "error").map((event) => event.error.code);
  }
}

const dialogue = (name, config, script, NativeWebSocket) =>
  test(name, { timeout: 60_000 }, async ({ signal, mock }) => {
    const complaints = mock.method(console, "error", () => {});
    globalThis.WebSocket = NativeWebSocket; // what decides between headers and subprotocols
    const talk = new Talk(config);
    signal.addEventListener("abort", () => talk.client.disconnect());
    await talk.client.connect();
    try {
      await talk.client.waitForSessionCreated();
      await script(talk, talk.client);
    } finally {
      talk.client.disconnect();
    }
    assert.deepEqual(complaints.mock.calls.map((call) => call.arguments), []);
    assert.ok(talk.events.every((event) => typeof event.event_id === "string"));
  });

const greet = async (talk) => {
  talk.ask("Hello");
  const { response } = await talk.next("response.done");
  assert.equal(response.status, "completed");
  assert.deepEqual(talk.items.map((item) => [item.role, item.status, item.formatted.text]), [
    ["user", "completed", "Hello"],
    ["assistant", "completed", "You said: Hello"],
  ]);
  assert.deepEqual(talk.events.slice(0, 2).map((event) => event.type), ["session.created", "conversation.created"]);
  assert.deepEqual(talk.errors, []);
};

dialogue("a text turn, the key in a header", written, greet);
dialogue("a text turn, the key in a subprotocol", written, greet, WebSocket);

dialogue("a tool's result, and the answer to it", written, async (talk, client) => {
  client.addTool(weather, ({ city }) => `rain in ${city}`);
  talk.ask("weather?");
  await talk.next("response.done");
  await talk.next("response.done");
  const [, call, result, answer] = talk.items;
  assert.deepEqual(call.formatted.tool, { type: "function", name: "get_weather", call_id: call.call_id, arguments: '{"city":"Paris"}' });
  assert.equal(result.formatted.output, '"rain in Paris"');
  assert.equal(answer.formatted.text, 'The tool says "rain in Paris"');
  assert.deepEqual(talk.errors, []);
});

dialogue("a spoken turn by hand, answered aloud", undefined, async (talk, client) => {
  talk.speak(tone(700), silence(300));
  client.createResponse();
  await talk.next("conversation.item.input_audio_transcription.completed");
  assert.equal((await talk.next("response.done")).response.status, "completed");
  const [question, answer] = talk.items;
  assert.deepEqual([question.formatted.transcript, question.formatted.audio.length], ["Good morning.", RATE_HZ]);
  assert.equal(answer.formatted.transcript, "You said: Good morning.");
  assert.ok(answer.formatted.audio.length > RATE_HZ / 2, "more than half a second");
  assert.deepEqual(talk.errors, []);
});

dialogue("a spoken turn as the server hears it", watched, async (talk) => {
  talk.speak(silence(500), tone(1000), silence(1000));
  await talk.next("input_audio_buffer.speech_started");
  await talk.next("input_audio_buffer.committed");
  await talk.next("conversation.item.input_audio_transcription.completed");
  assert.equal((await talk.next("response.done")).response.status, "completed");
  const [question, answer] = talk.items;
  assert.equal(question.formatted.transcript, "Good morning.");
  const seconds = question.formatted.audio.length / RATE_HZ;
  assert.ok(seconds > 1.5 && seconds < 2, `the speech, what precedes it, and the silence that ends it: ${seconds}`);
  assert.equal(answer.formatted.transcript, "You said: Good morning.");
  assert.deepEqual(talk.errors, []);
});

dialogue("speech cuts off an answer, which the client truncates", watched, async (talk, client) => {
  client.on("conversation.interrupted", () => client.cancelResponse(talk.items.at(-1).id, RATE_HZ / 10));
  talk.ask("Tell me a story");
  await talk.next("response.audio.delta");
  talk.speak(tone(500));
  const { response } = await talk.next("response.done");
  assert.deepEqual([response.status, response.status_details.reason], ["cancelled", "turn_detected"]);
  assert.equal((await talk.next("conversation.item.truncated")).audio_end_ms, 100);
  const story = talk.items.at(-1);
  assert.deepEqual([story.status, story.formatted.audio.length], ["incomplete", RATE_HZ / 10]);
  assert.deepEqual(talk.errors, ["response_cancel_not_active"]);
  talk.speak(silence(1000));
  assert.equal((await talk.next("response.done")).response.status, "completed");
  assert.equal(talk.items.at(-1).formatted.transcript, "You said: Good morning.");
});

dialogue("the client cuts an answer off itself", undefined, async (talk, client) => {
  talk.ask("Tell me a story");
  await talk.next("response.audio.delta");
  client.cancelResponse(talk.items.at(-1).id, RATE_HZ / 20);
  const { response } = await talk.next("response.done");
  assert.deepEqual([response.status, response.status_details.reason], ["cancelled", "client_cancelled"]);
  assert.equal((await talk.next("conversation.item.truncated")).audio_end_ms, 50);
  assert.deepEqual(talk.errors, []);
});

dialogue("an item is deleted", written, async (talk, client) => {
  await greet(talk);
  const [question, answer] = talk.items;
  client.deleteItem(question.id);
  await talk.next("conversation.item.deleted");
  assert.deepEqual(talk.items, [answer]);
});

dialogue("mistakes come as errors, and the session goes on", undefined, async (talk, client) => {
  talk.ask("Tell me a story");
  await talk.next("response.audio.delta");
  client.createResponse();
  await talk.next("error");
  client.updateSession({ voice: "shimmer" });
  await talk.next("error");
  client.deleteItem("item_none");
  await talk.next("error");
  client.cancelResponse();
  await talk.next("response.done");
  client.cancelResponse();
  await talk.next("error");
  assert.deepEqual(talk.errors, [
    "conversation_already_has_active_response",
    "cannot_update_voice",
    "item_delete_invalid_item_id",
    "response_cancel_not_active",
  ]);
  talk.ask("Hello");
  assert.equal((await talk.next("response.done")).response.status, "completed");
});

test("a model that there isn't is refused before there is a session", async () => {
  globalThis.WebSocket = undefined;
  await assert.rejects(new RealtimeClient({ url, apiKey: "none", model: "gpt-none" }).connect(), /Could not connect/);
});

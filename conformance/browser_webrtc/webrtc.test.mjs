// Calls from a page: a browser's own RTCPeerConnection with its microphone, and the Agents SDK's, which makes one by itself.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { delimiter, join, normalize } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

const PATIENCE = { timeout: 120_000 };
const BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const BUNDLE = fileURLToPath(new URL("node_modules/@openai/agents-realtime/dist/bundle/", import.meta.url));
const RATE_HZ = 48_000;
const SCRIPT = `[[models]]
name = "parrot"
engine = "scripted"
pace_ms = 100
answers = [{ say = "one two three four five six seven eight nine ten" }]
`;

const folders = process.env.PATH.split(delimiter);
const chromium = BROWSERS.flatMap((name) => folders.map((folder) => join(folder, name))).find((path) => existsSync(path));

let base, key, server, pages, origin;
const told = {};
const home = mkdtempSync(join(tmpdir(), "antiphon-webrtc-"));

// What the microphone hears, again and again: a second and a half of silence, a second of a tone, and then nothing for long.
function microphone() {
  const samples = Int16Array.from({ length: 15 * RATE_HZ }, (_, at) =>
    at > 1.5 * RATE_HZ && at < 2.5 * RATE_HZ ? 12_000 * Math.sin((2 * Math.PI * 440 * at) / RATE_HZ) : 0,
  );
  const header = Buffer.alloc(44);
  header.write("RIFF", 0);
  header.writeUInt32LE(36 + samples.byteLength, 4);
  header.write("WAVEfmt ", 8);
  header.writeUInt32LE(16, 16);
  header.writeUInt16LE(1, 20);
  header.writeUInt16LE(1, 22);
  header.writeUInt32LE(RATE_HZ, 24);
  header.writeUInt32LE(2 * RATE_HZ, 28);
  header.writeUInt16LE(2, 32);
  header.writeUInt16LE(16, 34);
  header.write("data", 36);
  header.writeUInt32LE(samples.byteLength, 40);
  return Buffer.concat([header, Buffer.from(samples.buffer)]);
}

// A call by hand: it speaks, and hears the answer. The pages run what follows, so that it uses nothing from outside of it.
async function callByHand({ url, secret }) {
  const connection = new RTCPeerConnection();
  const channel = connection.createDataChannel("oai-events");
  const events = [];
  const spoken = new Promise((resolve) => {
    channel.onmessage = ({ data }) => {
      events.push(JSON.parse(data));
      if (events.at(-1).type === "output_audio_buffer.stopped") resolve();
    };
  });
  connection.ontrack = ({ streams: [stream] }) => Object.assign(new Audio(), { srcObject: stream }).play();
  const microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
  connection.addTrack(microphone.getAudioTracks()[0]);
  await connection.setLocalDescription();
  const headers = { authorization: `Bearer ${secret}`, "content-type": "application/sdp" };
  const reply = await fetch(`${url}?model=parrot`, { method: "POST", headers, body: connection.localDescription.sdp });
  const answer = await reply.text();
  const location = reply.headers.get("location");
  await connection.setRemoteDescription({ type: "answer", sdp: answer });
  await spoken;
  const stats = [...(await connection.getStats()).values()].find(({ type, kind }) => type === "inbound-rtp" && kind === "audio");
  connection.close();
  return { status: reply.status, location, events, heardEnergy: stats.totalAudioEnergy, packets: stats.packetsReceived };
}

// The same by the SDK, which is interrupted while it speaks.
async function callBySdk({ url, secret }) {
  const { OpenAIRealtimeWebRTC, RealtimeAgent, RealtimeSession } = await import("/bundle/openai-realtime-agents.mjs");
  const transport = new OpenAIRealtimeWebRTC({ baseUrl: url });
  const session = new RealtimeSession(new RealtimeAgent({ name: "a", instructions: "Be brief." }), { transport, model: "parrot" });
  const events = [];
  const errors = [];
  const seen = new Map();
  const next = (type) => new Promise((resolve) => seen.set(type, resolve));
  transport.on("*", (event) => {
    events.push(event);
    seen.get(event.type)?.();
  });
  session.on("error", ({ error }) => errors.push(JSON.stringify(error)));
  const started = next("output_audio_buffer.started");
  await session.connect({ apiKey: secret });
  await started;
  const cleared = next("output_audio_buffer.cleared");
  session.interrupt();
  await cleared;
  const { callId } = transport;
  session.close();
  return { callId, events, errors };
}

const CALLS = { "by-hand": callByHand, "by-sdk": callBySdk };

function page(request, response) {
  const [, name, file] = request.url.split("/");
  if (request.method === "POST") {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      told[name]?.(JSON.parse(Buffer.concat(chunks)));
      response.writeHead(204).end();
    });
  } else if (name === "bundle") {
    response.setHeader("content-type", "text/javascript");
    response.end(readFileSync(join(BUNDLE, normalize(file))));
  } else if (!(name in CALLS)) {
    response.writeHead(404).end();
  } else {
    response.setHeader("content-type", "text/html");
    response.end(`<!doctype html><script type="module">
      ${CALLS[name]}
      const report = await ${CALLS[name].name}(${JSON.stringify({ url: `${base}/realtime/calls`, secret: told.secret })})
        .catch((error) => ({ failed: String(error) }));
      await fetch("/${name}", { method: "POST", body: JSON.stringify(report) });
    </script>`);
  }
}

before(async () => {
  if (chromium === undefined) return;
  pages = createServer(page).listen(0, "127.0.0.1");
  await once(pages, "listening");
  origin = `http://127.0.0.1:${pages.address().port}`;
  const environ = { ...process.env, ANTIPHON_HOME: home, ANTIPHON_SERVER__ALLOWED_ORIGINS: origin };
  writeFileSync(join(home, "antiphon.toml"), SCRIPT);
  writeFileSync(join(home, "microphone.wav"), microphone());
  const options = { cwd: home, env: environ, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] };
  key = execFileSync(process.env.ANTIPHON, ["keys", "create", "--name", "browser"], options).trim();
  server = spawn(process.env.ANTIPHON, ["serve", "--port", "0"], options);
  for await (const line of createInterface(server.stdout)) {
    const address = line.match(/http:\/\/\S+:\d+/);
    if (!address) continue;
    base = `${address[0]}/v1`;
    break;
  }
}, PATIENCE);

after(async () => {
  pages?.close();
  if (server?.kill()) await once(server, "exit");
  rmSync(home, { recursive: true, force: true, maxRetries: 10 });
});

async function clientSecret() {
  const reply = await fetch(`${base}/realtime/client_secrets`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: JSON.stringify({ session: { type: "realtime", model: "parrot" } }),
  });
  return (await reply.json()).value;
}

// What a page told, after it was opened in a browser of its own whose microphone hears a file.
async function reportOf(name, signal) {
  const report = new Promise((resolve) => (told[name] = resolve));
  told.secret = await clientSecret();
  const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
  flags.push("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", "--autoplay-policy=no-user-gesture-required");
  flags.push(`--use-file-for-fake-audio-capture=${join(home, "microphone.wav")}`, `--user-data-dir=${join(home, name)}`);
  const browser = spawn(chromium, [...flags, `${origin}/${name}`], { stdio: "ignore", detached: true });
  const exited = once(browser, "exit").then(() => ({ failed: "Chromium has ended" }));
  const stop = () => process.kill(-browser.pid);
  signal.addEventListener("abort", stop);
  try {
    return await Promise.race([report, exited]);
  } finally {
    stop();
    await exited;
  }
}

const skip = chromium === undefined && "there is no Chromium here";
// A server that is installed without WebRTC says so, whatever the offer.
async function canCall(context) {
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/sdp" };
  const { status } = await fetch(`${base}/realtime/calls`, { method: "POST", headers, body: "v=0" });
  if (status === 501) context.skip("the server is installed without WebRTC");
  return status !== 501;
}

const types = (events) => events.map(({ type }) => type);

// Each stands somewhere after the one before it.
function assertInOrder(events, wanted) {
  let at = -1;
  for (const type of wanted) {
    at = types(events).indexOf(type, at + 1);
    assert.notEqual(at, -1, `${type} in ${types(events)}`);
  }
}

test("a page calls, speaks and hears the answer", { ...PATIENCE, skip }, async (context) => {
  if (!(await canCall(context))) return;
  const { failed, status, location, events, heardEnergy, packets } = await reportOf("by-hand", context.signal);
  assert.equal(failed, undefined);
  assert.equal(status, 201);
  assert.match(location, /^\/v1\/realtime\/calls\/rtc_\w+$/);
  assertInOrder(events, [
    "session.created",
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "response.created",
    "response.content_part.added",
    "output_audio_buffer.started",
    "response.done",
    "output_audio_buffer.stopped",
  ]);
  assert.ok(!types(events).includes("response.output_audio.delta"));
  assert.ok(packets > 100 && heardEnergy > 0.001, `${packets} packets, ${heardEnergy}`);
});

test("the Agents SDK calls, and interrupts the answer", { ...PATIENCE, skip }, async (context) => {
  if (!(await canCall(context))) return;
  const { failed, callId, events, errors } = await reportOf("by-sdk", context.signal);
  assert.equal(failed, undefined);
  assert.deepEqual(errors, []);
  assert.match(callId, /^rtc_\w+$/);
  assertInOrder(events, ["session.created", "output_audio_buffer.started", "output_audio_buffer.cleared"]);
  assert.ok(types(events).includes("session.updated"));
});

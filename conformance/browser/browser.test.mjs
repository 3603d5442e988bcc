// What browsers can do talks to antiphon: no headers, the key among the subprotocols, and a page that has an origin.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";

import { WebSocket as NodesOwn } from "undici";
import { WebSocket as Ws } from "ws";

const PATIENCE = { timeout: 120_000 };
const BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const SDK = "openai-agents-sdk.0.20.0";

// Two turns, one written and one spoken. The page runs it too, so that it uses nothing from outside of it.
function converse(WebSocket, url, protocols) {
  const written = { [protocols.includes("openai-beta.realtime-v1") ? "modalities" : "output_modalities"]: ["text"] };
  // A second of 16-bit samples at a quarter of full scale, of which there are 25 to a half wave.
  const tone = Uint8Array.from({ length: 48_000 }, (_, at) => (at % 2 ? (at % 100 < 50 ? 0x20 : 0xe0) : 0));
  const sounds = [tone, new Uint8Array(48_000)].map((bytes) => btoa(String.fromCharCode(...bytes)));
  const events = [];
  let socket;
  const say = (...said) => said.forEach((event) => socket.send(JSON.stringify(event)));
  const turns = [
    () => {
      const item = { type: "message", role: "user", content: [{ type: "input_text", text: "Hello" }] };
      say({ type: "conversation.item.create", item }, { type: "response.create", response: written });
    },
    () => say(...sounds.map((audio) => ({ type: "input_audio_buffer.append", audio }))),
    () => socket.close(1000),
  ];
  return new Promise((resolve) => {
    try {
      socket = new WebSocket(url, protocols);
    } catch (error) {
      resolve({ failed: String(error) });
      return;
    }
    socket.addEventListener("message", ({ data }) => {
      const event = JSON.parse(data);
      events.push(event);
      if (event.type === "session.created" || event.type === "response.done") turns.shift()();
    });
    socket.addEventListener("error", () => {});
    socket.addEventListener("close", ({ code, reason }) => resolve({ protocol: socket.protocol, code, reason, events }));
  });
}

const open = (WebSocket, ...asked) => converse(WebSocket, ...asking(...asked));
const asking = (secret, ...protocols) => [`${url}?model=parrot`, ["realtime", `openai-insecure-api-key.${secret}`, ...protocols]];

const said = ({ content }) => content.map((part) => part.text ?? part.transcript).join("");

function assertTalked(told, names) {
  assert.equal(told.failed, undefined);
  assert.deepEqual([told.protocol, told.code], ["realtime", 1000]);
  assert.equal(told.events[0].type, "session.created");
  const done = told.events.filter(({ type }) => type === "response.done");
  const [written, spoken] = done.map(({ response }) => said(response.output[0]));
  assert.equal(written, "Hello");
  assert.match(spoken, /^speech of \d+ ms$/);
  for (const name of names) assert.ok(told.events.some(({ type }) => type === name), name);
}

const GA = ["response.output_text.delta", "response.output_audio.delta"];
const BETA = ["response.text.delta", "response.audio.delta"];

let base, url, key, server, pages, told;
const home = mkdtempSync(join(tmpdir(), "antiphon-browser-"));

// A server that knows keys and pages of one origin, and that tells browsers what they can't read from an HTTP status.
before(async () => {
  told = {};
  pages = createServer(page).listen(0, "127.0.0.1");
  await once(pages, "listening");
  const environ = {
    ...process.env,
    ANTIPHON_HOME: home,
    ANTIPHON_SERVER__ALLOWED_ORIGINS: `http://127.0.0.1:${pages.address().port}`,
    ANTIPHON_REALTIME__AUTH_FAILURE: "event",
  };
  writeFileSync(join(home, "antiphon.toml"), '[[models]]\nname = "parrot"\nengine = "scripted"\n');
  const options = { cwd: home, env: environ, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] };
  key = execFileSync(process.env.ANTIPHON, ["keys", "create", "--name", "browser"], options).trim();
  server = spawn(process.env.ANTIPHON, ["serve", "--port", "0"], options);
  for await (const line of createInterface(server.stdout)) {
    const address = line.match(/http:\/\/\S+:\d+/);
    if (!address) continue;
    base = `${address[0]}/v1`;
    break;
  }
  url = `${base.replace(/^http/, "ws")}/realtime`;
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
  const { value } = await reply.json();
  assert.match(value, /^ek_/);
  return value;
}

for (const [name, WebSocket] of [
  ["Node's own WebSocket", NodesOwn],
  ["ws", Ws],
]) {
  test(`${name}: a key, and the newer dialect`, PATIENCE, async () => assertTalked(await open(WebSocket, key, SDK, "openai-organization.o"), GA));

  test(`${name}: a key, and the beta`, PATIENCE, async () => {
    const told = await open(WebSocket, key, "openai-beta.realtime-v1");
    assertTalked(told, BETA);
    assert.equal(told.events[1].type, "conversation.created");
  });

  test(`${name}: a client secret`, PATIENCE, async () => assertTalked(await open(WebSocket, await clientSecret(), SDK), GA));

  test(`${name}: a wrong key is told so`, PATIENCE, async () => {
    const { protocol, code, reason, events } = await open(WebSocket, "ak-wrong", SDK);
    assert.deepEqual([protocol, code, reason], ["realtime", 3000, "invalid_request_error.invalid_api_key"]);
    assert.deepEqual(events.map(({ error }) => error.code), ["invalid_api_key"]);
  });
}

// Chromium: the page tells what it saw to the server that it came from; another of its pages, by another name, is a stranger.

const folders = process.env.PATH.split(delimiter);
const chromium = BROWSERS.flatMap((name) => folders.map((folder) => join(folder, name))).find((path) => existsSync(path));

function page(request, response) {
  const [, name] = request.url.split("/");
  if (request.method === "POST") {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      told[name]?.(JSON.parse(Buffer.concat(chunks)));
      response.writeHead(204).end();
    });
    return;
  }
  const inner = name === "guest" ? `<iframe src="http://localhost:${pages.address().port}/stranger"></iframe>` : "";
  response.setHeader("content-type", "text/html");
  response.end(`<!doctype html>${inner}<script type="module">
    ${converse}
    const reply = await converse(WebSocket, ...${JSON.stringify(asking(told.secret, SDK))});
    await fetch("/${name}", { method: "POST", body: JSON.stringify(reply) });
  </script>`);
}

const skip = chromium === undefined && "there is no Chromium here";

test("Chromium: a page with a client secret, and a page of another origin", { ...PATIENCE, skip }, async ({ signal }) => {
  const reports = ["guest", "stranger"].map((name) => new Promise((resolve) => (told[name] = resolve)));
  told.secret = await clientSecret();
  const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
  const profile = `--user-data-dir=${join(home, "chromium")}`;
  const address = `http://127.0.0.1:${pages.address().port}/guest`;
  const browser = spawn(chromium, [...flags, profile, address], { stdio: "ignore", detached: true });
  const exited = once(browser, "exit").then(() => ({ failed: "Chromium has ended" }));
  const stop = () => process.kill(-browser.pid);
  signal.addEventListener("abort", stop);
  try {
    const [guest, stranger] = await Promise.all(reports.map((report) => Promise.race([report, exited])));
    assertTalked(guest, GA);
    assert.deepEqual(stranger, { protocol: "", code: 1006, reason: "", events: [] });
  } finally {
    stop();
    await exited;
  }
});

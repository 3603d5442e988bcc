// Codex, the program, works over one WebSocket. It is 400 MB large, so it is used where it is installed, and not fetched.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";

import WebSocket, { WebSocketServer } from "ws";

const PROGRAM = process.env.ANTIPHON_CODEX ?? "codex";
const skip = isThere() ? false : "there is no Codex here: npm install --global @openai/codex";
const PATIENCE = { timeout: 120_000, skip };

function isThere() {
  try {
    return Boolean(execFileSync(PROGRAM, ["--version"], { stdio: "pipe" }));
  } catch {
    return false;
  }
}

// Between Codex and the server, to see each request, and to spoil one: with the id of a response that no server has.
const requests = [];
const errors = [];
let spoils = false;

async function relay() {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1", path: "/v1/responses" });
  server.on("connection", (client) => {
    const upstream = new WebSocket(`${process.env.ANTIPHON_URL.replace("http", "ws")}/responses`, { headers: { authorization: "Bearer none" } });
    const opened = once(upstream, "open");
    client.on("message", async (message) => {
      const request = JSON.parse(message);
      if (spoils && request.previous_response_id) {
        spoils = false;
        request.previous_response_id = "resp_gone";
      }
      requests.push(request);
      await opened;
      upstream.send(JSON.stringify(request));
    });
    upstream.on("message", (message) => {
      const event = JSON.parse(message);
      if (event.type === "error") errors.push(event.error.code);
      client.send(String(message));
    });
    client.on("close", () => upstream.close());
    upstream.on("close", () => client.close());
  });
  await once(server, "listening");
  return server;
}

// Codex as an editor drives it: JSON-RPC, one message in each line.
class Codex {
  #waiting = new Map();
  #notices = [];
  #wake = () => {};
  #id = 0;

  constructor(home) {
    const cwd = join(home, "work");
    mkdirSync(cwd);
    this.process = spawn(PROGRAM, ["app-server"], { cwd, env: { ...process.env, HOME: home, CODEX_HOME: home }, stdio: ["pipe", "pipe", "ignore"] });
    createInterface({ input: this.process.stdout }).on("line", (line) => {
      const message = JSON.parse(line);
      if (message.method) this.#notices.push(message);
      else this.#waiting.get(message.id)(message);
      this.#wake();
    });
  }

  async ask(method, params) {
    const id = ++this.#id;
    const answered = new Promise((resolve) => this.#waiting.set(id, resolve));
    this.process.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", id, method, params })}\n`);
    const { error, result } = await answered;
    assert.equal(error, undefined);
    return result;
  }

  async begin() {
    await this.ask("initialize", { clientInfo: { name: "conformance", version: "1" } });
    this.process.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", method: "initialized" })}\n`);
    const { thread } = await this.ask("thread/start", { approvalPolicy: "never", sandbox: "danger-full-access" });
    this.threadId = thread.id;
  }

  async until(method) {
    const seen = [];
    for (;;) {
      while (this.#notices.length) {
        seen.push(this.#notices.shift());
        if (seen.at(-1).method === method) return seen;
      }
      await new Promise((resolve) => (this.#wake = resolve));
    }
  }

  start(text) {
    return this.ask("turn/start", { threadId: this.threadId, input: [{ type: "text", text }] });
  }

  // The status of a turn, and its items: what was said, and what commands put out.
  async end() {
    const seen = await this.until("turn/completed");
    const items = seen.filter(({ method }) => method === "item/completed").map(({ params }) => params.item);
    const said = items.map((item) => item.aggregatedOutput ?? item.text ?? item.type).filter((text) => text !== "userMessage");
    return { status: seen.at(-1).params.turn.status, said };
  }

  async turn(text) {
    await this.start(text);
    return this.end();
  }
}

let home, server, codex;

before(async () => {
  if (skip) return;
  server = await relay();
  home = mkdtempSync(join(tmpdir(), "antiphon-codex-"));
  const provider = `name = "antiphon"\nbase_url = "http://127.0.0.1:${server.address().port}/v1"\nwire_api = "responses"\nsupports_websockets = true\n`;
  const settings = 'model = "parrot"\nmodel_provider = "antiphon"\ncheck_for_update_on_startup = false\n\n[analytics]\nenabled = false\n\n';
  writeFileSync(join(home, "config.toml"), `${settings}[model_providers.antiphon]\n${provider}`);
  codex = new Codex(home);
  await codex.begin();
}, PATIENCE);

after(async () => {
  if (skip) return;
  codex.process.kill();
  await once(codex.process, "close");
  server.clients.forEach((client) => client.terminate());
  server.close();
  rmSync(home, { recursive: true, force: true, maxRetries: 5 });
});

test("a warm-up, a turn, a command and its output, each continuing what came before", PATIENCE, async () => {
  assert.deepEqual(await codex.turn("Hello"), { status: "completed", said: ["You said: Hello"] });
  const { status, said } = await codex.turn("run the shell");
  assert.deepEqual([status, said[0], said[1].startsWith("The tool says")], ["completed", "the shell was here\n", true]);
  assert.equal(requests[0].generate, false);
  assert.ok(requests.slice(1).every((request) => request.previous_response_id && request.store === false), "all continue");
  assert.equal(requests.at(-1).input.length, 1);
});

test("a turn that is interrupted, and the next", PATIENCE, async () => {
  const { turn } = await codex.start("a story");
  await codex.until("item/agentMessage/delta");
  await codex.ask("turn/interrupt", { threadId: codex.threadId, turnId: turn.id });
  assert.equal((await codex.end()).status, "interrupted");
  assert.deepEqual(await codex.turn("Still there?"), { status: "completed", said: ["You said: Still there?"] });
});

test("a response that nobody knows any more: Codex sends the whole conversation", PATIENCE, async () => {
  spoils = true;
  assert.deepEqual(await codex.turn("Go on"), { status: "completed", said: ["You said: Go on"] });
  assert.deepEqual(errors, ["previous_response_not_found"]);
  assert.equal(requests.at(-1).previous_response_id, undefined);
});

test("a compaction, and the turn after it", PATIENCE, async () => {
  await codex.ask("thread/compact/start", { threadId: codex.threadId });
  assert.deepEqual(await codex.end(), { status: "completed", said: ["contextCompaction"] });
  assert.deepEqual(await codex.turn("bye"), { status: "completed", said: ["You said: bye"] });
});

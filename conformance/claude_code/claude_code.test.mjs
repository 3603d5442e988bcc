// Claude Code, the program, in print mode. It is 235 MB large, so it is used where it is installed, and not fetched.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, request as ask } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { after, before, test } from "node:test";

const PROGRAM = process.env.ANTIPHON_CLAUDE_CODE;
const skip = isThere() ? false : "ANTIPHON_CLAUDE_CODE does not name the program: npm install @anthropic-ai/claude-code";
const PATIENCE = { timeout: 120_000, skip };

function isThere() {
  if (!PROGRAM) return false;
  try {
    return execFileSync(PROGRAM, ["--version"], { stdio: "pipe" }).includes("Claude Code");
  } catch {
    return false;
  }
}

// Between Claude Code and the server, to see each request, and to answer some in the server's place.
const requests = [];
let refusals = [];
let relay;
let home;

before(async () => {
  home = mkdtempSync(join(tmpdir(), "claude-code-"));
  const server = new URL(process.env.ANTIPHON_URL);
  relay = createServer(async (client, reply) => {
    const body = await text(client);
    if (client.method === "POST") requests.push({ url: client.url, body: JSON.parse(body) });
    const refusal = client.method === "POST" ? refusals.shift() : undefined;
    if (refusal) {
      reply.writeHead(refusal.status, { "content-type": "application/json" }).end(JSON.stringify(refusal.body));
      return;
    }
    const headers = { ...client.headers, host: server.host };
    const upstream = ask({ host: server.hostname, port: server.port, method: client.method, path: client.url, headers }, (answer) => {
      reply.writeHead(answer.statusCode, answer.headers);
      answer.pipe(reply);
    });
    upstream.end(body);
  });
  await once(relay.listen(0, "127.0.0.1"), "listening");
});

after(() => {
  relay.close();
  relay.closeAllConnections();
  rmSync(home, { recursive: true, force: true });
});

async function print(prompt, environ = {}) {
  requests.length = 0;
  const env = {
    PATH: process.env.PATH,
    HOME: home,
    IS_SANDBOX: "1",
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    ANTHROPIC_BASE_URL: `http://127.0.0.1:${relay.address().port}`,
    ANTHROPIC_AUTH_TOKEN: "none",
    ANTHROPIC_MODEL: "parrot",
    ...environ,
  };
  const options = ["-p", prompt, "--allowedTools", "Bash", "--output-format", "json"];
  const program = spawn(PROGRAM, options, { cwd: home, env, stdio: ["ignore", "pipe", "inherit"] });
  return JSON.parse(await text(program.stdout));
}

test("a command, its output, and the reasoning before it", PATIENCE, async () => {
  const told = await print("Run it.");
  assert.deepEqual([told.is_error, told.num_turns, told.stop_reason], [false, 2, "end_turn"]);
  assert.equal(told.result, "The tool says the shell was here");
  assert.equal(requests.length, 2); // streamed, each once
  assert.ok(requests.every(({ url, body }) => url === "/v1/messages?beta=true" && body.stream));
  const [thought, , call] = requests[1].body.messages.find((message) => message.role === "assistant").content;
  assert.deepEqual([thought.type, thought.thinking, call.type, call.id], ["thinking", "A command will tell.", "tool_use", "toolu_shell"]);
  assert.ok(thought.signature);
  assert.ok(told.usage.input_tokens > 0);
});

test("an overloaded server is asked again", PATIENCE, async () => {
  const overloaded = { type: "error", error: { type: "overloaded_error", message: "Overloaded" } };
  refusals = [{ status: 529, body: overloaded }];
  const told = await print("Run it.");
  assert.deepEqual([told.is_error, told.result], [false, "The tool says the shell was here"]);
  assert.equal(requests.length, 3);
});

test("a model that is not there is told", PATIENCE, async () => {
  const told = await print("Run it.", { ANTHROPIC_MODEL: "none" });
  assert.equal(told.is_error, true);
});

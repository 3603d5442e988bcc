/** How a program asks this server the same thing. */
import { session } from './session.svelte';

const origin = (): string => location.href.replace(/[?#].*$/, '').replace(/\/$/, '');
const KEY = 'YOUR_KEY';

export interface Sample { name: string; language: string; text: string }

/** A request for a response, as curl, Python and JavaScript. */
export function samplesOf(body: object): Sample[] {
  const base = `${origin()}/v1`;
  const key = session.needsKey ? KEY : 'none';
  const text = JSON.stringify(body, null, 2);
  return [
    { name: 'Python', language: 'python', text: python(base, key, body) },
    { name: 'JavaScript', language: 'javascript', text: javascript(base, key, body, text) },
    { name: 'curl', language: 'bash', text: curl(base, text) },
  ];
}

/** What becomes of the answer: it is shown as it comes, when it is there, or once the server has made it. */
type Way = 'streamed' | 'whole' | 'background';

function wayOf(body: object): Way {
  if ('stream' in body && body.stream) return 'streamed';
  return 'background' in body && body.background ? 'background' : 'whole';
}

const PYTHON_ENDS: Record<Way, string> = {
  streamed: 'for event in answer:\n    print(event.type)',
  whole: 'print(answer.output_text)',
  background: 'while answer.status in ("queued", "in_progress"):\n    time.sleep(1)\n    answer = client.responses.retrieve(answer.id)\nprint(answer.output_text)',
};

function python(base: string, key: string, body: object): string {
  const fields = Object.entries(body).map(([name, value]) => `    ${name}=${literal(value, 4)},`);
  const way = wayOf(body);
  const imports = `${way === 'background' ? 'import time\n\n' : ''}from openai import OpenAI`;
  return `${imports}\n\nclient = OpenAI(base_url="${base}", api_key="${key}")\nanswer = client.responses.create(\n${fields.join('\n')}\n)\n${PYTHON_ENDS[way]}`;
}

/** A value as Python writes it. */
function literal(value: unknown, indent: number): string {
  const pad = ' '.repeat(indent + 4);
  if (value === null || value === undefined) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value !== 'object') return JSON.stringify(value);
  const parts = Array.isArray(value)
    ? value.map((each) => pad + literal(each, indent + 4))
    : Object.entries(value).map(([name, each]) => `${pad}${JSON.stringify(name)}: ${literal(each, indent + 4)}`);
  const [open, close] = Array.isArray(value) ? '[]' : '{}';
  return parts.length ? `${open}\n${parts.join(',\n')},\n${' '.repeat(indent)}${close}` : `${open}${close}`;
}

const JAVASCRIPT_ENDS: Record<Way, string> = {
  streamed: 'for await (const event of answer) console.log(event.type);',
  whole: 'console.log(answer.output_text);',
  background: 'while (answer.status === "queued" || answer.status === "in_progress") {\n  await new Promise((done) => setTimeout(done, 1000));\n  answer = await client.responses.retrieve(answer.id);\n}\nconsole.log(answer.output_text);',
};

function javascript(base: string, key: string, body: object, text: string): string {
  const way = wayOf(body);
  const request = text.replace(/^( *)"(\w+)":/gm, '$1$2:');
  return `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: "${base}", apiKey: "${key}" });\n${way === 'background' ? 'let' : 'const'} answer = await client.responses.create(${request});\n${JAVASCRIPT_ENDS[way]}`;
}

function curl(base: string, text: string): string {
  const auth = session.needsKey ? ` \\\n  -H "Authorization: Bearer $ANTIPHON_API_KEY"` : '';
  return `curl ${base}/responses${auth} \\\n  -H "Content-Type: application/json" \\\n  -d '${text.replaceAll("'", `'\\''`)}'`;
}

/** How other programs are pointed at this server: Codex with a model that chats, voice agents with one that is talked to. */
export function programsFor(model: string, spoken: string): Sample[] {
  const base = `${origin()}/v1`;
  const key = session.needsKey ? KEY : 'none';
  return [
    { name: 'Codex', language: 'bash', text: codex(base, model) },
    { name: 'LiveKit', language: 'python', text: `from livekit.plugins import openai\n\nmodel = openai.realtime.RealtimeModel(\n    base_url="${base}",\n    api_key="${key}",\n    model="${spoken}",\n)` },
    { name: 'Pipecat', language: 'python', text: pipecat(base.replace(/^http/, 'ws'), key, spoken) },
  ];
}

function codex(base: string, model: string): string {
  const key = session.needsKey ? '\nenv_key = "ANTIPHON_KEY"' : '';
  return `# ~/.codex/config.toml\nmodel = "${model}"\nmodel_provider = "antiphon"\n\n[model_providers.antiphon]\nname = "antiphon"\nbase_url = "${base}"\nwire_api = "responses"${key}`;
}

function pipecat(base: string, key: string, model: string): string {
  return `from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService\n\nsettings = OpenAIRealtimeLLMService.Settings(model="${model}")\nservice = OpenAIRealtimeLLMService(api_key="${key}", base_url="${base}/realtime", settings=settings)`;
}

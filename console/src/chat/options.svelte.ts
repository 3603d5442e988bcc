import { json } from '../lib/api';
import { models } from '../lib/models.svelte';
import { recall, remember } from '../lib/storage';

/** A tool that the server has, as it would stand in a request. */
export interface ServerTool {
  type: string;
  server_label?: string;
  server_description?: string;
}

const WEATHER = `[
  {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city, now.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false}
  }
]`;

/** What goes with the next question. Only the effort is remembered in this browser. */
class Options {
  instructions = $state('');
  #effort = $state(recall('options', {}).effort ?? '');
  /** Names of server tools that are on: their type, or `mcp:LABEL`. */
  on = $state<string[]>([]);
  /** Vector stores that are searched. */
  vectorStores = $state<string[]>([]);
  /** Whether functions of the person's own go with it, as JSON. */
  withFunctions = $state(false);
  functions = $state(WEATHER);
  isStored = $state(true);
  inBackground = $state(false);
  /** MCP tools that were allowed for the rest of this chat, by label. */
  allowed = $state<Record<string, string[]>>({});
  serverTools = $state<ServerTool[]>([]);

  get effort(): string {
    return this.#effort;
  }

  set effort(effort: string) {
    this.#effort = effort;
    remember('options', { ...recall('options', {}), effort });
  }

  async findTools(): Promise<void> {
    try {
      this.serverTools = (await json<{ data: ServerTool[] }>('/console/tools')).data;
    } catch {
      this.serverTools = [];
    }
  }

  allow(label: string, tool: string): void {
    this.allowed[label] = [...(this.allowed[label] ?? []), tool];
  }

  /** The functions as they are sent; an error if they are no JSON. */
  get ownFunctions(): object[] {
    const parsed: unknown = JSON.parse(this.functions);
    return Array.isArray(parsed) ? (parsed as object[]) : [parsed as object];
  }

  /** The part of a request that says how to answer. */
  request(model: string): Record<string, unknown> {
    const efforts = models.named(model)?.antiphon?.abilities?.efforts ?? [];
    const effort = efforts.includes(this.#effort) ? this.#effort : undefined;
    const tools = this.#tools();
    return {
      ...(this.instructions.trim() ? { instructions: this.instructions.trim() } : {}),
      ...(efforts.length ? { reasoning: { ...(effort ? { effort } : {}), summary: 'auto' } } : {}),
      ...(tools.length ? { tools } : {}),
      ...(this.inBackground ? { background: true } : {}),
      ...(this.isStored || this.inBackground ? {} : { store: false }),
      ...(this.#include().length ? { include: this.#include() } : {}),
    };
  }

  #tools(): object[] {
    const tools = this.on.flatMap((name) => {
      const [type = '', label] = name.split(/:(.*)/s);
      if (type === 'mcp') return [{ type, server_label: label, ...(this.allowed[label!] ? { require_approval: { never: { tool_names: this.allowed[label!] } } } : {}) }];
      if (type === 'file_search') return this.vectorStores.length ? [{ type, vector_store_ids: [...this.vectorStores] }] : [];
      if (type === 'code_interpreter') return [{ type, container: { type: 'auto' } }];
      return [{ type }];
    });
    return this.withFunctions ? [...tools, ...this.ownFunctions] : tools;
  }

  #include(): string[] {
    return [
      ...(this.on.includes('file_search') ? ['file_search_call.results'] : []),
      ...(this.on.includes('web_search') ? ['web_search_call.action.sources'] : []),
      ...(this.on.includes('code_interpreter') ? ['code_interpreter_call.outputs'] : []),
      ...(this.isStored || this.inBackground ? [] : ['reasoning.encrypted_content']),
    ];
  }
}

export const options = new Options();

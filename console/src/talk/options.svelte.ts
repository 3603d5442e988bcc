import { models } from '../lib/models.svelte';
import { session } from '../lib/session.svelte';
import { recall, remember } from '../lib/storage';
import type { Dialect } from './dialects';
import type { Choice, Transport } from './talk.svelte';

export const EXAMPLE = `[
  {
    "type": "function",
    "name": "find_lighthouse",
    "description": "The lighthouse that is nearest to a town.",
    "parameters": {"type": "object", "properties": {"near": {"type": "string"}}, "required": ["near"], "additionalProperties": false}
  }
]`;

type Name = 'voice' | 'language' | 'turns' | 'line' | 'dialect';

/** How to talk. What is chosen from lists is remembered in this browser; instructions and tools are not. */
class Options {
  instructions = $state('');
  /** Tools as JSON, as they stand in a session. */
  tools = $state('');
  #chosen = $state(recall('options', {}));

  #get(name: Name): string {
    return this.#chosen[`talk.${name}`] ?? '';
  }

  set(name: Name, value: string): void {
    this.#chosen[`talk.${name}`] = value;
    remember('options', { ...recall('options', {}), [`talk.${name}`]: value });
  }

  get voices(): string[] {
    return models.named(models.of('talk'))?.antiphon?.voices ?? [];
  }

  get languages(): string[] {
    return models.named(models.of('talk'))?.antiphon?.languages ?? [];
  }

  get voice(): string {
    const voice = this.#get('voice');
    return this.voices.includes(voice) ? voice : '';
  }

  get language(): string {
    const language = this.#get('language');
    return this.languages.includes(language) ? language : '';
  }

  get handsFree(): boolean {
    return this.#get('turns') !== 'hold';
  }

  get transport(): Transport {
    return this.#get('line') === 'webrtc' && session.can.webrtc ? 'webrtc' : 'websocket';
  }

  /** Calls are of the general form. */
  get dialect(): Dialect {
    return this.#get('dialect') === 'beta' && this.transport === 'websocket' ? 'beta' : 'ga';
  }

  /** The tools, and why they are none. */
  get parsed(): { tools: object[]; problem: string } {
    if (!this.tools.trim()) return { tools: [], problem: '' };
    try {
      const tools: unknown = JSON.parse(this.tools);
      const isList = Array.isArray(tools) && tools.every((tool) => typeof tool === 'object' && tool !== null);
      return isList ? { tools: tools as object[], problem: '' } : { tools: [], problem: 'A list of objects is wanted: [{…}].' };
    } catch (error) {
      return { tools: [], problem: (error as Error).message };
    }
  }

  get choice(): Choice {
    const { instructions, voice, language, handsFree, dialect, transport } = this;
    return { model: models.of('talk'), instructions: instructions.trim(), voice, language, handsFree, dialect, transport, tools: this.parsed.tools };
  }
}

export const options = new Options();

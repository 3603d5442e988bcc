import { ApiError } from '../lib/api';
import type { Annotation, Event, Item, Part, ResponseObject, Status, Usage, WholeResponse } from './types';

/** An item of the output, with what only the page knows of it. */
export interface Entry {
  item: Item;
  /** Seconds, once it is done; null if it was not seen being made. */
  took_s: number | null;
  isDone: boolean;
  /** What a tool is doing, such as `searching`. */
  progress: string;
  /** A picture that is not finished yet, as base64. */
  partialImage: string;
}

let lastKey = 0;
const FLUSH_HIDDEN_MS = 250;

/** What was asked, and the response to it. */
export class Turn {
  readonly key = ++lastKey;
  id = $state<string | null>(null);
  status = $state<Status | 'asking'>('asking');
  model = $state('');
  input = $state<Item[]>([]);
  entries = $state<Entry[]>([]);
  usage = $state<Usage | null>(null);
  error = $state<unknown>(null);
  /** Why it is not complete, such as `max_output_tokens`. */
  incomplete = $state('');
  first_s = $state<number | null>(null);
  took_s = $state<number | null>(null);
  created_at = $state(Date.now() / 1000);
  background = $state(false);
  /** Whether input and output are here, or only that it exists. */
  isLoaded = $state(true);
  isStored = true;
  /** The last event that came, from which a background response is resumed. */
  sequence = -1;
  /** Stops what is being asked. */
  stop: AbortController | null = null;
  /** The request, for "copy as code". */
  request: Record<string, unknown> | null = null;
  #began = 0;
  #firstAt = 0;
  #startedAt: number[] = [];
  #waiting: [place: string, text: string][] = [];
  #isDue = false;

  /** The turn that it continues, as far as it is known. */
  parent = $state.raw<Turn | null>(null);

  constructor(parent: Turn | null, input: Item[]) {
    this.parent = parent;
    this.input = input;
  }

  get isRunning(): boolean {
    return this.status === 'asking' || this.status === 'queued' || this.status === 'in_progress';
  }

  /** Answers of ours that it waits for: approvals, and results of functions. */
  get requests(): Item[] {
    if (this.isRunning) return [];
    return this.entries.map(({ item }) => item).filter(({ type }) => ['mcp_approval_request', 'function_call', 'custom_tool_call'].includes(type) );
  }

  get text(): string {
    return this.entries.flatMap(({ item }) => (item.type === 'message' && Array.isArray(item.content) ? item.content.map((part) => part.text ?? part.refusal ?? '') : [])).join('\n\n');
  }

  get tokensPerSecond(): number | null {
    const writing_s = (this.took_s ?? 0) - (this.first_s ?? 0);
    if (!this.usage || this.first_s === null || writing_s < 0.005) return null;
    return this.usage.output_tokens / writing_s;
  }

  begin(): void {
    this.#began = performance.now();
  }

  fail(error: unknown): void {
    this.flush();
    this.error = error;
    this.status = 'failed';
    this.isLoaded = true;
    this.#finish();
  }

  cancel(): void {
    this.flush();
    this.status = 'cancelled';
    this.#finish();
  }

  /** What the server has of it. */
  take(response: ResponseObject | WholeResponse): void {
    this.id = response.id;
    this.status = response.status;
    this.model = response.model;
    this.created_at = response.created_at;
    this.usage = response.usage ?? null;
    this.background = response.background ?? false;
    this.incomplete = response.incomplete_details?.reason ?? '';
    if (response.status === 'failed' && response.error) this.error = new ApiError(0, response.error.message ?? 'The response failed.', response.error.code ?? null);
  }

  /** The same with its output, when it is read whole. */
  load(response: WholeResponse, input: Item[]): void {
    this.take(response);
    this.input = input;
    this.entries = response.output.map((item) => ({ item, took_s: null, isDone: true, progress: '', partialImage: '' }));
    if (response.completed_at) this.took_s = response.completed_at - response.created_at;
    this.isLoaded = true;
  }

  /** Begin anew, before all its events are read again. */
  rewind(): void {
    this.entries = [];
    this.sequence = -1;
    this.isLoaded = true;
  }

  apply(event: Event): void {
    if (event.sequence_number !== undefined) this.sequence = event.sequence_number;
    if (event.type.endsWith('.delta') && event.delta !== undefined) return this.#delta(event);
    this.flush();
    if (event.response) return this.#whole(event.type, event.response);
    if (event.type === 'error') {
      this.error = new ApiError(0, event.message ?? event.error?.message ?? 'The server reported an error.', event.error?.code ?? null);
      return;
    }
    this.#item(event);
  }

  #whole(type: string, response: ResponseObject): void {
    this.take(response);
    if (!/completed|incomplete|failed|cancelled/.test(type)) return;
    // The last event has the items as they are kept.
    response.output.forEach((item, at) => {
      if (this.entries[at]) Object.assign(this.entries[at], { item, isDone: true });
      else this.entries.push({ item, took_s: null, isDone: true, progress: '', partialImage: '' });
    });
    if (response.status === 'in_progress') this.status = 'completed';
    this.#finish();
  }

  #finish(): void {
    if (this.#began && this.took_s === null) this.took_s = (performance.now() - this.#began) / 1000;
    this.stop = null;
  }

  #item(event: Event): void {
    const at = event.output_index ?? -1;
    if (event.type === 'response.output_item.added' && event.item) {
      this.#startedAt[at] = performance.now();
      this.entries[at] = { item: normal(event.item), took_s: null, isDone: false, progress: '', partialImage: '' };
      return;
    }
    const entry = this.entries[at];
    if (!entry) return;
    if (event.type === 'response.output_item.done' && event.item) {
      entry.item = event.item;
      entry.isDone = true;
      entry.took_s = (performance.now() - this.#startedAt[at]!) / 1000;
    } else if (event.type === 'response.content_part.added') parts(entry.item)[event.content_index!] = { ...event.part!, text: event.part!.text ?? '' };
    else if (event.type === 'response.reasoning_summary_part.added') (entry.item.summary ??= [])[event.summary_index!] = { ...event.part!, text: event.part!.text ?? '' };
    else if (event.type === 'response.output_text.annotation.added') (parts(entry.item)[event.content_index!]!.annotations ??= []).push(event.annotation as Annotation);
    else if (event.partial_image_b64) entry.partialImage = event.partial_image_b64;
    else if (/_call\.\w+$|list_tools\.\w+$/.test(event.type)) entry.progress = event.type.split('.').at(-1)!.replaceAll('_', ' ');
  }

  /** Words are put in their place once a frame. */
  #delta(event: Event): void {
    if (!this.#firstAt) {
      this.#firstAt = performance.now();
      if (this.#began) this.first_s = (this.#firstAt - this.#began) / 1000;
    }
    const place = `${event.type} ${event.output_index} ${event.content_index ?? event.summary_index ?? 0}`;
    const last = this.#waiting.at(-1);
    if (last?.[0] === place) last[1] += event.delta!;
    else this.#waiting.push([place, event.delta!]);
    if (this.#isDue) return;
    this.#isDue = true;
    if (document.hidden) setTimeout(() => this.flush(), FLUSH_HIDDEN_MS);
    else requestAnimationFrame(() => this.flush());
  }

  flush(): void {
    this.#isDue = false;
    for (const [place, text] of this.#waiting.splice(0)) {
      const [type, at, part] = place.split(' ') as [string, string, string];
      const item = this.entries[Number(at)]?.item;
      if (item) append(item, type, Number(part), text);
    }
  }
}

const normal = (item: Item): Item => (item.type === 'message' ? { ...item, content: [] } : { ...item });

function parts(item: Item): Part[] {
  if (!Array.isArray(item.content)) item.content = [];
  return item.content;
}

function append(item: Item, type: string, at: number, text: string): void {
  if (type === 'response.output_text.delta') {
    const part = (parts(item)[at] ??= { type: 'output_text', text: '', annotations: [] });
    part.text = (part.text ?? '') + text;
  } else if (type === 'response.reasoning_text.delta') {
    const part = (parts(item)[at] ??= { type: 'reasoning_text', text: '' });
    part.text = (part.text ?? '') + text;
  } else if (type === 'response.refusal.delta') {
    const part = (parts(item)[at] ??= { type: 'refusal', refusal: '' });
    part.refusal = (part.refusal ?? '') + text;
  } else if (type === 'response.reasoning_summary_text.delta') {
    const part = ((item.summary ??= [])[at] ??= { type: 'summary_text', text: '' });
    part.text = (part.text ?? '') + text;
  } else if (/arguments\.delta$/.test(type)) item.arguments = (item.arguments ?? '') + text;
  else if (/custom_tool_call_input\.delta$/.test(type)) item.input = (item.input ?? '') + text;
  else if (/code\.delta$/.test(type)) item.code = (item.code ?? '') + text;
}

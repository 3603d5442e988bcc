import { SvelteSet } from 'svelte/reactivity';
import { ApiError, eventsOf, json } from '../lib/api';
import { models } from '../lib/models.svelte';
import { go } from '../lib/router.svelte';
import { textFile } from './attachments.svelte';
import { kept, turnsOf, wholeTurn } from './kept.svelte';
import { options } from './options.svelte';
import { Turn } from './turn.svelte';
import type { Event, Item, ListedResponse, Part, ResponseObject } from './types';

const MAX_TITLE = 80;
const LOADS_AT_ONCE = 4;
const LOOK_AGAIN_MS = 2000;
const RESUME_AFTER_MS = 1000;

/** The chat that is open: a tree of turns, of which one path is shown. */
class Chat {
  /** Turns in the order of their making; a turn's parent is before it. */
  turns = $state.raw<Turn[]>([]);
  /** The last turn of the path that is shown. */
  leaf = $state.raw<Turn | null>(null);
  rootId = $state('');
  isLoading = $state(false);
  error = $state<unknown>(null);
  /** Approvals and results that were given, but not sent yet as others are missing. */
  readonly answers = new SvelteSet<Item>();

  /** The turns that are shown, oldest first. */
  get path(): Turn[] {
    const path: Turn[] = [];
    for (let turn = this.leaf; turn; turn = turn.parent) path.push(turn);
    return path.reverse();
  }

  get running(): Turn | null {
    return this.leaf?.isRunning ? this.leaf : null;
  }

  siblings(turn: Turn): Turn[] {
    return this.turns.filter((each) => each.parent === turn.parent);
  }

  clear(): void {
    for (const turn of this.turns) if (!turn.background) turn.stop?.abort();
    this.turns = [];
    this.leaf = null;
    this.rootId = '';
    this.error = null;
    this.answers.clear();
    options.allowed = {};
  }

  /** Ask something after what is shown. */
  ask(parts: Part[]): void {
    this.#begin(new Turn(this.leaf, [{ type: 'message', role: 'user', content: parts }]));
  }

  /** The same question once more, as another branch; with `input`, another question in its place. */
  again(turn: Turn, input: Item[] = turn.input): void {
    this.#begin(new Turn(turn.parent, $state.snapshot(input) as Item[]));
  }

  /** Give an approval or a result; the model goes on once nothing is missing. */
  answer(turn: Turn, item: Item): void {
    this.answers.add(item);
    const missing = this.missing(turn);
    if (missing.length) return;
    const input = [...this.answers];
    this.answers.clear();
    this.#begin(new Turn(turn, input));
  }

  /** What a turn still waits for. */
  missing(turn: Turn): Item[] {
    if (turn !== this.leaf) return [];
    const given = [...this.answers].map((item) => item.approval_request_id ?? item.call_id);
    return turn.requests.filter((item) => !given.includes(item.type === 'mcp_approval_request' ? item.id : item.call_id));
  }

  /** Show a branch: the latest turn below it. */
  async show(turn: Turn): Promise<void> {
    let leaf = turn;
    for (let next = this.turns.findLast((each) => each.parent === leaf); next; next = this.turns.findLast((each) => each.parent === leaf)) leaf = next;
    this.leaf = leaf;
    this.answers.clear();
    await this.#loadPath();
  }

  stop(): void {
    const turn = this.running;
    if (!turn) return;
    if (turn.background && turn.id) void json(`/v1/responses/${turn.id}/cancel`, { method: 'POST', source: 'chat' }).then((response) => turn.take(response as ResponseObject), (error) => { this.error = error; });
    turn.stop?.abort();
    if (!turn.background) turn.cancel();
  }

  /** Open a chat that the server keeps. */
  async open(rootId: string): Promise<void> {
    if (rootId === this.rootId) return;
    this.clear();
    this.rootId = rootId;
    this.isLoading = true;
    try {
      const rows = await turnsOf(rootId);
      if (this.rootId !== rootId) return;
      if (!rows.length) throw new ApiError(404, 'This chat is not on the server any more.', 'not_found');
      this.turns = tree(rows);
      this.leaf = this.turns.at(-1)!;
      await this.#loadPath();
    } catch (error) {
      if (this.rootId === rootId) this.error = error;
    }
    if (this.rootId === rootId) this.isLoading = false;
  }

  async #loadPath(): Promise<void> {
    const missing = this.path.filter((turn) => !turn.isLoaded).reverse(); // what is read first is at the end
    const load = async (): Promise<void> => {
      for (let turn = missing.shift(); turn; turn = missing.shift()) {
        const { response, input } = await wholeTurn(turn.id!);
        turn.load(response, ownInput(input));
        if (turn.isRunning) void this.#follow(turn);
      }
    };
    await Promise.all(Array.from({ length: LOADS_AT_ONCE }, load));
  }

  #begin(turn: Turn): void {
    this.turns = [...this.turns, turn];
    this.leaf = turn;
    this.error = null;
    turn.begin();
    void this.#run(turn);
  }

  async #run(turn: Turn): Promise<void> {
    turn.stop = new AbortController();
    try {
      const body = this.#request(turn);
      turn.request = body;
      turn.background = body.background === true;
      turn.isStored = body.store !== false;
      const ask = { method: 'POST' as const, body: { ...body, stream: true }, signal: turn.stop.signal, source: 'chat' as const };
      for await (const event of eventsOf<Event>('/v1/responses', ask)) this.#apply(turn, event);
      if (turn.isRunning) throw new ApiError(0, 'The answer broke off.', 'connection_lost');
    } catch (error) {
      if (turn.background && turn.id && turn.isRunning) return this.#follow(turn);
      if (turn.isRunning) (error as Error).name === 'AbortError' ? turn.cancel() : turn.fail(error);
    }
    this.#ended();
  }

  #apply(turn: Turn, event: Event): void {
    const isNew = turn.id === null;
    turn.apply(event);
    if (!isNew || !turn.id || !turn.isStored || turn.parent?.id) return;
    this.rootId = turn.id;
    if (turn === this.leaf) go('chat', [turn.id], true);
    void kept.load();
  }

  #ended(): void {
    void kept.load();
  }

  /** A response that goes on without us: its events from where we were, or if it has none, its state now and then. */
  async #follow(turn: Turn): Promise<void> {
    turn.stop = new AbortController();
    const { signal } = turn.stop;
    if (turn.sequence < 0) turn.rewind();
    while (turn.isRunning && this.turns.includes(turn) && !signal.aborted) {
      try {
        if (!turn.background) {
          await pause(LOOK_AGAIN_MS);
          const { response, input } = await wholeTurn(turn.id!);
          turn.load(response, ownInput(input));
          continue;
        }
        const after = turn.sequence >= 0 ? `&starting_after=${turn.sequence}` : '';
        for await (const event of eventsOf<Event>(`/v1/responses/${turn.id}?stream=true${after}`, { signal, source: 'chat' })) turn.apply(event);
      } catch (error) {
        if (signal.aborted) break;
        if (error instanceof ApiError && error.status >= 400 && error.status < 500) {
          turn.background = false; // its events are gone; the response is not
          continue;
        }
        await pause(RESUME_AFTER_MS);
      }
    }
    this.#ended();
  }

  #request(turn: Turn): Record<string, unknown> {
    const model = models.of('chat');
    turn.model = model;
    const previous = usable(turn.parent);
    const isChained = previous === null || isKept(previous);
    const input = isChained ? turn.input : [...history(previous), ...turn.input];
    const isRoot = !(isChained && previous);
    return {
      model,
      input: $state.snapshot(input),
      ...(isChained && previous ? { previous_response_id: previous.id } : {}),
      ...options.request(model),
      ...(isRoot && (options.isStored || options.inBackground) ? { metadata: { title: titleOf(turn.input) } } : {}),
    };
  }
}

const pause = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/** The turn whose answer the next one continues: one that failed before it had an answer is passed over. */
function usable(turn: Turn | null): Turn | null {
  let each = turn;
  while (each && (!each.id || each.status === 'failed')) each = each.parent;
  return each;
}

/** Whether the server has a turn and all before it. */
function isKept(turn: Turn): boolean {
  for (let each: Turn | null = turn; each; each = each.parent) if (each.id && !each.isStored) return false;
  return true;
}

/** What was said, for a server that does not keep it. */
function history(turn: Turn): Item[] {
  const items: Item[] = [];
  for (let each: Turn | null = turn; each; each = each.parent) {
    if (!each.id || each.status === 'failed') continue;
    const output = each.entries.map(({ item }) => item).filter((item) => item.type !== 'reasoning' || item.encrypted_content);
    items.unshift(...each.input, ...output);
  }
  return items;
}

/** A request that had the whole conversation in its input: what was asked is after the model's last words. */
function ownInput(input: Item[]): Item[] {
  const last = input.findLastIndex((item) => (item.type === 'message' && item.role === 'assistant') || item.type === 'reasoning');
  return input.slice(last + 1);
}

function titleOf(input: Item[]): string {
  const content = input.find((item) => item.type === 'message')?.content;
  const text = typeof content === 'string' ? content : (content?.map((part) => part.text ?? '').findLast((each) => each.trim() && !textFile(each)) ?? '');
  const line = text.trim().replace(/\s+/g, ' ');
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1)}…` : line || 'Pictures and files';
}

function tree(rows: ListedResponse[]): Turn[] {
  const byId = new Map<string, Turn>();
  for (const row of rows) {
    const turn = new Turn(byId.get(row.previous_response_id ?? '') ?? null, []);
    Object.assign(turn, { id: row.id, status: row.status, model: row.model, usage: row.usage, background: row.background, created_at: row.created_at, isLoaded: false });
    byId.set(row.id, turn);
  }
  return [...byId.values()];
}

export const chat = new Chat();

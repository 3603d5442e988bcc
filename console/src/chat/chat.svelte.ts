import { tick } from 'svelte';
import { SvelteSet } from 'svelte/reactivity';
import { ApiError, eventsOf, json } from '../lib/api';
import { models } from '../lib/models.svelte';
import { go, route } from '../lib/router.svelte';
import { toast } from '../lib/toasts.svelte';
import { textFile } from './attachments.svelte';
import { kept, latestOf, turnsOf, wholeTurns } from './kept.svelte';
import { options } from './options.svelte';
import { Turn } from './turn.svelte';
import type { Event, Item, ListedResponse, Part, ResponseObject, WholeResponse } from './types';

const MAX_TITLE = 80;
/** How many turns are shown at first, and how many more with each step back. */
const STEP = 20;
/** The most turns before a new one that stay on the page: what is there is laid out at every word. */
const MAX_BEFORE_NEW = 40;
/** What is read is shown in slices of this time, so that the page answers meanwhile. */
const SLICE_MS = 12;
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
  /** How many turns at the end of the path may be shown. */
  #most = $state(STEP);
  #isReading = false;
  /** Another one with each chat that is opened: what an earlier one still reads is of no use. */
  #visit = Symbol();
  readonly #path = $derived.by(() => {
    const path: Turn[] = [];
    for (let turn = this.leaf; turn; turn = turn.parent) path.push(turn);
    return path.reverse();
  });
  readonly #after = $derived(new Map(this.#path.map((turn, at) => [turn, this.#path[at + 1]])));
  readonly #children = $derived(Map.groupBy(this.turns, (turn) => turn.parent));
  readonly #shown = $derived.by(() => {
    const from = Math.max(0, this.#path.length - this.#most);
    const lastMissing = this.#path.findLastIndex((turn) => !turn.isLoaded);
    return this.#path.slice(Math.max(from, lastMissing + 1));
  });

  /** The turns from the first question to the leaf. */
  get path(): Turn[] {
    return this.#path;
  }

  /** Those at its end that are on the page. */
  get shown(): Turn[] {
    return this.#shown;
  }

  get hasEarlier(): boolean {
    return this.#shown.length < this.#path.length;
  }

  get running(): Turn | null {
    return this.leaf?.isRunning ? this.leaf : null;
  }

  siblings(turn: Turn): Turn[] {
    return this.#children.get(turn.parent) ?? [];
  }

  /** The turn after one, on the path that is shown. */
  after(turn: Turn): Turn | undefined {
    return this.#after.get(turn);
  }

  clear(): void {
    for (const turn of this.turns) if (!turn.background) turn.stop?.abort();
    this.turns = [];
    this.leaf = null;
    this.#most = STEP;
    this.#isReading = false;
    this.#visit = Symbol();
    this.isLoading = false;
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
    for (let next = this.#children.get(leaf)?.at(-1); next; next = this.#children.get(leaf)?.at(-1)) leaf = next;
    this.leaf = leaf;
    this.answers.clear();
    await this.#read();
  }

  /** Show more of what was said before. */
  async earlier(): Promise<void> {
    if (this.isLoading || this.#isReading || !this.hasEarlier) return;
    this.#most = this.#shown.length + STEP;
    await this.#read();
  }

  stop(): void {
    const turn = this.running;
    if (!turn) return;
    if (turn.background && turn.id) void json(`/v1/responses/${turn.id}/cancel`, { method: 'POST', source: 'chat' }).then((response) => turn.take(response as ResponseObject), (error: Error) => toast(error.message, 'bad'));
    turn.stop?.abort();
    if (!turn.background) turn.cancel();
  }

  /** Open a chat that the server keeps. */
  async open(rootId: string): Promise<void> {
    if (rootId === this.rootId && !(this.error && !this.turns.length)) return;
    this.clear();
    this.rootId = rootId;
    this.isLoading = true;
    const visit = this.#visit;
    try {
      const latest = await latestOf(rootId, STEP);
      if (this.#visit !== visit) return;
      if (!latest.data.length) throw new ApiError(404, 'This chat is not on the server any more.', 'not_found');
      this.#grow(latest.data.toReversed());
      this.leaf = this.turns.at(-1)!;
      const [rows] = await Promise.all([latest.has_more ? turnsOf(rootId) : [], this.#fill(latest.data)]);
      if (this.#visit !== visit) return;
      if (rows.length) this.#grow(rows);
      await this.#read();
    } catch (error) {
      if (this.#visit === visit) this.error = error;
    }
    if (this.#visit === visit) this.isLoading = false;
  }

  /** Read again what could not be read. */
  async reopen(): Promise<void> {
    const { rootId } = this;
    this.clear();
    await this.open(rootId);
  }

  /** Take in what the server lists of the chat, oldest first, beside the turns that are there. */
  #grow(rows: ListedResponse[]): void {
    const byId = new Map(this.turns.flatMap((turn) => (turn.id ? [[turn.id, turn] as const] : [])));
    const listed = rows.map((row) => {
      const turn = byId.get(row.id) ?? listedTurn(row);
      byId.set(row.id, turn);
      turn.parent = byId.get(row.previous_response_id ?? '') ?? null;
      return turn;
    });
    const known = new Set(listed);
    this.turns = [...listed, ...this.turns.filter((turn) => !known.has(turn))];
  }

  /** Read what is missing of the turns that may be shown, the newest first. */
  async #read(): Promise<void> {
    if (this.#isReading) return;
    this.#isReading = true;
    const visit = this.#visit;
    try {
      for (let missing = this.#missing(); missing.length; missing = this.#missing()) {
        const rows = await wholeTurns(missing.map((turn) => turn.id!));
        if (this.#visit !== visit) return;
        if (!rows.length) missing.forEach((turn) => turn.fail(new ApiError(404, 'This answer is not on the server any more.', 'not_found')));
        await this.#fill(rows);
        if (this.#visit !== visit) return;
      }
    } catch (error) {
      if (this.#visit === visit) this.error = error;
    }
    if (this.#visit === visit) this.#isReading = false;
  }

  #missing(): Turn[] {
    return this.#path.slice(-this.#most).filter((turn) => !turn.isLoaded).toReversed().slice(0, STEP);
  }

  async #fill(rows: WholeResponse[]): Promise<void> {
    const byId = new Map(this.turns.map((turn) => [turn.id, turn]));
    let began = performance.now();
    for (const row of rows) {
      const turn = byId.get(row.id);
      if (!turn || turn.isLoaded) continue;
      turn.load(row, ownInput(row.input));
      if (turn.isRunning) void this.#follow(turn);
      await tick();
      if (performance.now() - began < SLICE_MS) continue;
      await pause(0);
      began = performance.now();
    }
  }

  #begin(turn: Turn): void {
    this.turns = [...this.turns, turn];
    this.leaf = turn;
    this.#most = Math.min(this.#shown.length + 1, MAX_BEFORE_NEW + 1);
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
    this.rootId ||= turn.id;
    if (turn === this.leaf && route.tab === 'chat') go('chat', [this.rootId], true);
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
          const [row] = await wholeTurns([turn.id!]);
          if (!row) throw new ApiError(404, 'This answer is not on the server any more.', 'not_found');
          turn.load(row, ownInput(row.input));
          continue;
        }
        const after = turn.sequence >= 0 ? `&starting_after=${turn.sequence}` : '';
        for await (const event of eventsOf<Event>(`/v1/responses/${turn.id}?stream=true${after}`, { signal, source: 'chat' })) turn.apply(event);
      } catch (error) {
        if (signal.aborted) break;
        if (error instanceof ApiError && error.status >= 400 && error.status < 500) {
          if (!turn.background) turn.fail(error);
          turn.background = false; // its events are gone; the response may not be
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
    const isFirst = !(isChained && previous);
    const isStored = options.isStored || options.inBackground;
    return {
      model,
      input: $state.snapshot(input),
      ...(isChained && previous ? { previous_response_id: previous.id } : {}),
      ...options.request(model),
      ...(isFirst && isStored ? { metadata: this.rootId ? { branch_of: this.rootId } : { title: titleOf(turn.input) } } : {}),
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

/** A response of which it is known that it is there. */
function listedTurn(row: ListedResponse): Turn {
  const turn = new Turn(null, []);
  return Object.assign(turn, { id: row.id, status: row.status, model: row.model, usage: row.usage, background: row.background, created_at: row.created_at, isLoaded: false });
}

export const chat = new Chat();

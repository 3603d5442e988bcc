import { untrack } from 'svelte';
import { serverSentEvents } from '../lib/api';
import { oncePerFrame } from '../lib/frames';
import type { AnswerRow, LogLine, ModelRow, ServerRow, SessionRow, TicketRow, WorkerRow } from './rows';

interface Topics {
  status: ServerRow;
  models: ModelRow;
  workers: WorkerRow;
  queue: TicketRow;
  sessions: SessionRow;
  responses: AnswerRow;
}
type Topic = keyof Topics;

const AGAIN_MS = [500, 1000, 2000, 5000];
const MAX_LINES = 2000;

/** What an operator sees, kept up to date by one stream of the server's. Lists are plain; `version` tells that they have changed. */
class Live {
  #tables: { [T in Topic]: Map<string, Topics[T]> } = { status: new Map(), models: new Map(), workers: new Map(), queue: new Map(), sessions: new Map(), responses: new Map() };
  #lines: LogLine[] = [];
  #lastId = '';
  #stop: AbortController | null = null;
  /** Rises when rows have changed, once a frame. */
  version = $state(0);
  state = $state<'off' | 'connecting' | 'live' | 'lost'>('off');
  /** When it was lost, in Unix seconds. */
  lostAt = $state(0);
  error = $state<unknown>(null);
  /** By how much the server's clock is ahead of ours, in seconds. */
  #ahead_s = 0;
  /** The server's clock; moves once a second while it is live. */
  now = $state(Date.now() / 1000);

  rows<T extends Topic>(topic: T): Topics[T][] {
    void this.version;
    return [...this.#tables[topic].values()] as Topics[T][];
  }

  get server(): ServerRow | undefined {
    return this.rows('status')[0];
  }

  /** The log's last lines, oldest first. Don't change them. */
  get lines(): readonly LogLine[] {
    void this.version;
    return this.#lines;
  }

  /** Begin to listen; `close` ends it. */
  open(): void {
    if (this.#stop) return;
    this.#stop = new AbortController();
    untrack(() => { if (this.state === 'off') this.state = 'connecting'; });
    void this.#run(this.#stop.signal);
  }

  close(): void {
    this.#stop?.abort();
    this.#stop = null;
    this.state = 'off';
  }

  async #run(signal: AbortSignal): Promise<void> {
    const clock = setInterval(() => { if (this.state === 'live') this.now = Date.now() / 1000 + this.#ahead_s; }, 1000);
    for (let failures = 0; !signal.aborted; failures += 1) {
      try {
        for await (const { event, data, id } of serverSentEvents('/updates', { signal, headers: this.#lastId ? { 'last-event-id': this.#lastId } : {} })) {
          if (id) this.#lastId = id;
          failures = 0;
          this.state = 'live';
          this.error = null;
          this.#take(event ?? '', JSON.parse(data) as Record<string, unknown>);
        }
      } catch (error) {
        if (signal.aborted) break;
        this.error = error;
      }
      if (this.state !== 'lost' && !signal.aborted) {
        this.state = 'lost';
        this.lostAt = Date.now() / 1000;
      }
      await new Promise((done) => setTimeout(done, AGAIN_MS[Math.min(failures, AGAIN_MS.length - 1)]));
    }
    clearInterval(clock);
  }

  #take(event: string, data: Record<string, unknown>): void {
    const [topic = '', kind = ''] = event.split('.');
    if (typeof data.now === 'number') {
      this.#ahead_s = data.now - Date.now() / 1000;
      this.now = data.now;
    }
    if (topic === 'log') this.#addLines(kind === 'all' ? null : this.#lines, kind === 'all' ? (data.rows as LogLine[]) : [data as unknown as LogLine]);
    else if (topic in this.#tables) this.#change(topic as Topic, kind, data);
    this.#tell();
  }

  #change(topic: Topic, kind: string, data: Record<string, unknown>): void {
    const table = this.#tables[topic] as Map<string, { id: string }>;
    if (kind === 'all') {
      table.clear();
      (data.rows as { id: string }[]).forEach((row) => table.set(row.id, row));
    } else if (kind === 'row') table.set(data.id as string, data as { id: string });
    else table.delete(data.id as string);
  }

  #addLines(before: LogLine[] | null, added: LogLine[]): void {
    this.#lines = [...(before ?? []), ...added].slice(-MAX_LINES);
  }

  readonly #tell = oncePerFrame(() => (this.version += 1));
}

export const live = new Live();

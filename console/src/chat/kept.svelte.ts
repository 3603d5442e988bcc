/** The chats that the server keeps. */
import { ApiError, json, type Page } from '../lib/api';
import type { ListedResponse, Root, WholeResponse } from './types';

const PAGE = 40;
const MAX_TURNS = 1000;
/** As many requests as a browser sends to one server at a time. */
const AT_ONCE = 6;
/** A longer wait is shown. */
const MOST_WAIT_S = 120;

/** How far a chat is deleted; `limited` while the key has to wait until it may ask again. */
export interface Step { done: number; of: number; limited: boolean }

class Kept {
  all = $state<Root[]>([]);
  want = $state('');
  hasMore = $state(false);
  error = $state<unknown>(null);
  isKnown = $state(false);
  #asked = 0;

  /** Read the list, from the newest. */
  async load(): Promise<void> {
    await this.#read(null);
  }

  async more(): Promise<void> {
    await this.#read(this.all.at(-1)?.id ?? null);
  }

  async #read(after: string | null): Promise<void> {
    const number = ++this.#asked;
    const query = new URLSearchParams({ limit: String(PAGE), ...(after ? { after } : {}), ...(this.want.trim() ? { q: this.want.trim() } : {}) });
    try {
      const page = await json<Page<Root>>(`/v1/responses/roots?${query}`);
      if (number !== this.#asked) return; // a later search was faster
      this.all = after ? [...this.all, ...page.data] : page.data;
      this.hasMore = page.has_more;
      this.error = null;
    } catch (error) {
      if (number === this.#asked) this.error = error;
    }
    this.isKnown = true;
  }

  async rename(root: Root, title: string): Promise<void> {
    await json(`/v1/responses/${root.id}`, { method: 'POST', body: { metadata: { ...root.metadata, title } } });
    await this.load();
  }

  /**
   * Delete a chat with all its branches. The API deletes one response at a time, so the first turn goes last: a chat of
   * which something is left stays in the list, and what is left can be deleted again. It ends with the first failure, but waits where the key has asked as often as it may.
   */
  async remove(root: Root, signal: AbortSignal, onStep: (step: Step) => void): Promise<void> {
    let [done, of, isLimited] = [0, 0, false];
    const tell = (limited = false): void => onStep({ done, of, limited });
    const patiently = <T>(ask: () => Promise<T>): Promise<T> => asOftenAsAllowed(ask, signal, () => { tell(isLimited = true); });
    const ids = (await patiently(() => turnsOf(root.id, Infinity))).map((turn) => turn.id);
    of = ids.length;
    const others = ids.filter((id) => id !== root.id);
    const failures: unknown[] = [];
    const drop = async (id: string): Promise<void> => {
      await patiently(() => json(`/v1/responses/${id}`, { method: 'DELETE' }).catch(ignoreMissing));
      done += 1;
      tell();
    };
    const work = async (_: unknown, number: number): Promise<void> => {
      while (others.length && !failures.length && (number === 0 || !isLimited)) await drop(others.pop()!).catch((error: unknown) => failures.push(error));
    };
    tell();
    await Promise.all(Array.from({ length: AT_ONCE }).map(work));
    if (failures.length) throw failures[0];
    await drop(root.id);
    this.all = this.all.filter((each) => each.id !== root.id);
  }
}

/** Ask, and where a limit refuses it, once more as soon as the server says. */
async function asOftenAsAllowed<T>(ask: () => Promise<T>, signal: AbortSignal, onWait: () => void): Promise<T> {
  for (;;) {
    signal.throwIfAborted();
    try {
      return await ask();
    } catch (error) {
      const wait_s = error instanceof ApiError && error.status === 429 ? (error.retryAfter_s ?? Infinity) : Infinity;
      if (wait_s > MOST_WAIT_S) throw error;
      onWait();
      await new Promise<void>((done) => {
        const timer = setTimeout(done, wait_s * 1000);
        signal.addEventListener('abort', () => { clearTimeout(timer); done(); }, { once: true });
      });
    }
  }
}

function ignoreMissing(error: unknown): void {
  if (!(error instanceof ApiError && error.status === 404)) throw error;
}

/** The responses of a chat, oldest first, until there are as many as wanted. */
export async function turnsOf(root: string, most = MAX_TURNS): Promise<ListedResponse[]> {
  const found: ListedResponse[] = [];
  for (let after = ''; found.length < most; ) {
    const query = new URLSearchParams({ root, order: 'asc', limit: '100', ...(after ? { after } : {}) });
    const page = await json<Page<ListedResponse>>(`/v1/responses?${query}`);
    found.push(...page.data);
    after = page.last_id ?? '';
    if (!page.has_more || !after) break;
  }
  return found;
}

/** The latest responses of a chat with all that was said, newest first. */
export async function latestOf(root: string, limit: number): Promise<Page<WholeResponse>> {
  const query = new URLSearchParams({ root, limit: String(limit), include: 'items' });
  return json<Page<WholeResponse>>(`/v1/responses?${query}`);
}

/** Responses with all that was said, newest first: fewer if they are large together. */
export async function wholeTurns(ids: string[]): Promise<WholeResponse[]> {
  const query = new URLSearchParams({ ids: ids.join(','), limit: String(ids.length), include: 'items' });
  return (await json<Page<WholeResponse>>(`/v1/responses?${query}`)).data;
}

export const kept = new Kept();

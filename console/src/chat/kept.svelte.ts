/** The chats that the server keeps. */
import { ApiError, json, type Page } from '../lib/api';
import type { ListedResponse, Root, WholeResponse } from './types';

const PAGE = 40;
const MAX_TURNS = 1000;
/** As many requests as a browser sends to one server at a time. */
const AT_ONCE = 6;

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
   * which something is left stays in the list, and what is left can be deleted again. It ends with the first failure.
   */
  async remove(root: Root, onStep: (done: number, of: number) => void): Promise<void> {
    const ids = (await turnsOf(root.id, Infinity)).map((turn) => turn.id);
    const others = ids.filter((id) => id !== root.id);
    const failures: unknown[] = [];
    let done = 0;
    const drop = async (id: string): Promise<void> => {
      await json(`/v1/responses/${id}`, { method: 'DELETE' }).catch(ignoreMissing);
      onStep((done += 1), ids.length);
    };
    const work = async (): Promise<void> => {
      while (others.length && !failures.length) await drop(others.pop()!).catch((error: unknown) => failures.push(error));
    };
    onStep(0, ids.length);
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    if (failures.length) throw failures[0];
    await drop(root.id);
    this.all = this.all.filter((each) => each.id !== root.id);
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

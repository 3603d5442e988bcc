/** The chats that the server keeps. */
import { ApiError, json, type Page } from '../lib/api';
import type { ListedResponse, Root, WholeResponse } from './types';

const PAGE = 40;
const MAX_TURNS = 1000;

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

  /** Delete a chat with all its branches. */
  async remove(root: Root): Promise<void> {
    const turns = await turnsOf(root.id);
    for (const { id } of turns.toReversed()) await json(`/v1/responses/${id}`, { method: 'DELETE' }).catch(ignoreMissing);
    this.all = this.all.filter((each) => each.id !== root.id);
  }
}

function ignoreMissing(error: unknown): void {
  if (!(error instanceof ApiError && error.status === 404)) throw error;
}

/** All responses of a chat, oldest first. */
export async function turnsOf(root: string): Promise<ListedResponse[]> {
  const found: ListedResponse[] = [];
  for (let after = ''; found.length < MAX_TURNS; ) {
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

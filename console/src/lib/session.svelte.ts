import { ApiError, credentials, json, start } from './api';

interface State {
  name: string;
  version: string;
  needs_key: boolean;
  ready: boolean;
  /** Why not, while it starts. */
  reason: 'fetching' | 'loading' | 'failed' | null;
  /** Why weights could not be fetched. */
  message: string | null;
  weights: Weights[];
  console: { webrtc: boolean; tls: boolean; recording: boolean };
}

interface PageKey {
  value: string;
  expires_at: number;
  scopes: string[];
  tenant: string;
  key_id: string | null;
}

export interface Weights {
  /** Null where a key is needed. */
  name: string | null;
  /** What it is needed for: `answers`, `hearing`, `voice`, `search`. */
  for: string;
  state: 'fetching' | 'loading' | 'failed';
  bytes: number;
  bytes_total: number;
  bytes_per_s: number | null;
  eta_s: number | null;
}

const RENEW_BEFORE_S = 180;
const LOOK_MS = 1000;
const LOOK_WHEN_READY_MS = 15_000;

/** The server, and who we are to it. */
class Session {
  version = $state('');
  needsKey = $state(false);
  /** Whether requests may be sent: no key is needed, or we have one. */
  isOpen = $state(false);
  /** Whether `start` has found out. */
  isKnown = $state(false);
  isReachable = $state(true);
  ready = $state(false);
  reason = $state<State['reason']>(null);
  message = $state<string | null>(null);
  weights = $state<Weights[]>([]);
  can = $state<State['console']>({ webrtc: false, tls: false, recording: false });
  scopes = $state<string[]>([]);
  keyId = $state<string | null>(null);
  tenant = $state('');
  #renewal: Promise<boolean> | null = null;
  #start: Promise<void> | null = null;
  /** Counts sign-ins and sign-outs: an answer that comes after the next one is to an old question. */
  #changes = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Whether it is there, and not ready yet; or it can't be, by its `reason`. */
  get isStarting(): boolean {
    return this.isReachable && !this.ready && this.reason !== null;
  }

  async start(): Promise<void> {
    credentials.renew = () => this.#renew();
    start.over = () => this.#over();
    const first = this.#look();
    void first.catch(() => undefined).then(() => this.#watch());
    try {
      const state = await first;
      this.needsKey = state.needs_key;
      if (!state.needs_key) this.isOpen = true;
      else await this.#renew();
    } catch {
      // The status at the foot says that it can't be reached, and the watch goes on asking.
    }
    this.isKnown = true;
  }

  /** Whether the key opens routes of this scope; without keys everything is open. */
  may(scope: string): boolean {
    return !this.needsKey || this.scopes.includes(scope);
  }

  /** Trade a key that a person typed for the page's own, and forget it. */
  async signIn(key: string): Promise<void> {
    const change = ++this.#changes;
    const taken = await json<PageKey>('/console/keys', { method: 'POST', headers: { authorization: `Bearer ${key}` } });
    if (change !== this.#changes) return;
    this.needsKey = true; // since the first key, if it was made just now
    this.#take(taken);
  }

  async signOut(): Promise<void> {
    this.#changes += 1;
    await json('/console/keys', { method: 'DELETE' }).catch(() => undefined);
    this.#forget();
  }

  #forget(): void {
    credentials.key = '';
    clearTimeout(this.#timer);
    this.scopes = [];
    this.keyId = null;
    this.isOpen = !this.needsKey;
  }

  #take(key: PageKey): void {
    credentials.key = key.value;
    this.scopes = key.scopes;
    this.keyId = key.key_id;
    this.tenant = key.tenant;
    this.isOpen = true;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#renew(), Math.max(5, key.expires_at - Date.now() / 1000 - RENEW_BEFORE_S) * 1000);
  }

  /** By the cookie, or by the key that is about to end. Requests that meet the end together ask once. */
  #renew(): Promise<boolean> {
    this.#renewal ??= (async () => {
      const change = this.#changes;
      try {
        const taken = await json<PageKey>('/console/keys', { method: 'POST' });
        if (change === this.#changes) this.#take(taken);
        return this.isOpen;
      } catch (error) {
        if (change !== this.#changes) return this.isOpen;
        if (error instanceof ApiError && error.status !== 0) {
          this.needsKey = true;
          this.#forget();
        }
        return false;
      } finally {
        this.#renewal = null;
      }
    })();
    return this.#renewal;
  }

  /** Looks itself, as the watch does not while the page is hidden. Requests that wait share it. */
  #over(): Promise<void> {
    this.#start ??= (async () => {
      do {
        await new Promise((done) => setTimeout(done, LOOK_MS));
        await this.#look().catch(() => undefined);
      } while (!this.ready);
    })().finally(() => { this.#start = null; });
    return this.#start;
  }

  async #watch(): Promise<void> {
    for (;;) {
      await new Promise((done) => setTimeout(done, this.ready ? LOOK_WHEN_READY_MS : LOOK_MS));
      if (!document.hidden) await this.#look().catch(() => undefined);
    }
  }

  async #look(): Promise<State> {
    try {
      const state = await json<State>('/console/state');
      this.isReachable = true;
      this.version = state.version;
      this.can = state.console;
      this.ready = state.ready;
      this.reason = state.reason;
      this.message = state.message;
      this.weights = state.weights;
      return state;
    } catch (error) {
      this.isReachable = !(error instanceof ApiError && error.status === 0);
      this.ready = false;
      throw error;
    }
  }
}

export const session = new Session();

import type { Still } from './camera.svelte';
import type { Metrics } from './protocol';

/** What was measured in a session, by the page and by the model's engine. */
export class Figures {
  /** What the engine said last, by name. */
  model = $state<Metrics>({});
  notes = $state<string[]>([]);
  sent_s = $state(0);
  /** Sound that was left out, as the network was too slow. */
  dropped_s = $state(0);
  stills = $state(0);
  lastStill = $state<{ width: number; height: number; bytes: number } | null>(null);
  /** How much sound waited to be heard when more came: the least and the last. */
  lastAhead_ms = $state<number | null>(null);
  leastAhead_ms = $state<number | null>(null);
  heard_s = $state(0);
  /** Times that the player ran dry amid an answer, and for how long in all. */
  gaps = $state(0);
  gap_ms = $state(0);
  returns = $state(0);
  away_s = $state(0);
  #isAmid = false;
  #dryAt = 0;

  clear(): void {
    this.model = {};
    this.notes = [];
    this.lastStill = this.lastAhead_ms = this.leastAhead_ms = null;
    this.sent_s = this.dropped_s = this.stills = this.heard_s = this.gaps = this.gap_ms = this.returns = this.away_s = 0;
    this.quiet();
  }

  measured(metrics: Metrics): void {
    const { notes, failure: _failure, ...others } = metrics;
    if (Array.isArray(notes)) this.notes = [...this.notes, ...notes.map(String)].slice(-8);
    Object.assign(this.model, others);
  }

  sent(ms: number, isSent: boolean, still: Still | null): void {
    if (isSent) this.sent_s += ms / 1000;
    else this.dropped_s += ms / 1000;
    if (!still) return;
    this.stills += 1;
    this.lastStill = { width: still.width, height: still.height, bytes: still.bytes };
  }

  /** Sound came while so much waited. */
  heard(ahead_ms: number, ms: number): void {
    this.heard_s += ms / 1000;
    if (this.#dryAt) {
      this.gaps += 1;
      this.gap_ms += performance.now() - this.#dryAt;
      this.#dryAt = 0;
    }
    if (this.#isAmid) {
      this.lastAhead_ms = ahead_ms;
      this.leastAhead_ms = Math.min(this.leastAhead_ms ?? Infinity, ahead_ms);
    }
    this.#isAmid = true;
  }

  /** Nothing is left to play, but the answer goes on. */
  ranDry(): void {
    if (this.#isAmid) this.#dryAt = performance.now();
  }

  /** The answer is over. */
  quiet(): void {
    this.#isAmid = false;
    this.#dryAt = 0;
  }

  cameBack(away_s: number): void {
    this.returns += 1;
    this.away_s += away_s;
  }
}

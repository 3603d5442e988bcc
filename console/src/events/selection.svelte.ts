import { untrack } from 'svelte';
import { eventLog, type Direction, type Row, type Run, type Source } from '../lib/event_log.svelte';

export interface Criteria {
  source?: Source;
  direction?: Direction;
  /** Words in the type or anywhere in the message, in any case. */
  want?: string;
  onlyErrors?: boolean;
  /** Show each delta on a line of its own. */
  isUnfolded?: boolean;
}

const SLICE_MS = 8;
const TELL_MS = 100; // between two times that what was found so far is told
const escaped = (text: string): string => text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');

/**
 * The lines of the log that somebody wants to see. The log is gone through in slices of a few milliseconds, and only what is new
 * after that, so that neither a filter nor a stream of deltas holds the page up.
 */
export class Selection {
  #runs: Run[] = [];
  #criteria: Criteria = {};
  #words: RegExp | null = null;
  #next = 0;
  #began: Row | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #chosen = '';
  #told = 0;
  /** Rises when `runs` has changed. */
  version = $state(0);

  /** What was found. Don't change it. */
  get runs(): readonly Run[] {
    return this.#runs;
  }

  /** Begin anew with other criteria, or go on with what has come since. */
  choose(criteria: Criteria): void {
    const chosen = JSON.stringify(criteria);
    const began = eventLog.rows[0];
    if (chosen !== this.#chosen || began !== this.#began) {
      this.#chosen = chosen;
      this.#criteria = criteria;
      this.#words = criteria.want?.trim() ? new RegExp(escaped(criteria.want.trim()), 'i') : null;
      this.#began = began;
      this.#next = 0;
      this.#runs = [];
    }
    this.#goOn();
  }

  /** All messages of the chosen lines, the folded ones too. */
  rows(): Row[] {
    return this.#runs.flatMap((run) => this.#rowsOf(run));
  }

  stop(): void {
    clearTimeout(this.#timer);
  }

  #rowsOf(run: Run): readonly Row[] {
    const begin = eventLog.rows[0]?.seq ?? 0;
    return run.count === 1 ? [run.first] : eventLog.rows.slice(run.first.seq - begin, run.last.seq - begin + 1);
  }

  #goOn(): void {
    clearTimeout(this.#timer);
    const until = performance.now() + SLICE_MS;
    const all: readonly (Run | Row)[] = this.#criteria.isUnfolded ? eventLog.rows : eventLog.runs;
    if (this.#next > 0) this.#again(all[--this.#next]!); // the last one may have grown
    while (this.#next < all.length) {
      const each = all[this.#next]!;
      const run = 'first' in each ? each : { first: each, last: each, count: 1, size: each.size };
      if (this.#matches(run)) this.#runs.push(run);
      this.#next += 1;
      if (this.#next % 64 === 0 && performance.now() > until) {
        this.#timer = setTimeout(() => this.#goOn());
        if (performance.now() - this.#told < TELL_MS) return;
        break;
      }
    }
    this.#told = performance.now();
    untrack(() => { this.version += 1; }); // an effect calls this
  }

  #again(each: Run | Row): void {
    const seq = 'first' in each ? each.first.seq : each.seq;
    if (this.#runs.at(-1)?.first.seq === seq) this.#runs.pop();
  }

  #matches(run: Run): boolean {
    const { source, direction, onlyErrors } = this.#criteria;
    if ((source && run.first.source !== source) || (direction && run.first.direction !== direction) || (onlyErrors && !run.first.is_error)) return false;
    const words = this.#words;
    return !words || words.test(run.first.type) || this.#rowsOf(run).some((row) => words.test(row.text));
  }
}

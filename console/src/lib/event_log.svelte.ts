import { oncePerFrame } from './frames';
/**
 * Every message both ways, under all tabs. It holds the last 20,000 in plain arrays, as a proxy for each would cost more than the list;
 * what shows them reads `eventLog.version`, which rises at most once a frame.
 */
export type Direction = 'sent' | 'came';
/** The tab that a message belongs to. */
export type Source = 'chat' | 'talk' | 'duplex' | 'operate';

export interface Row {
  /** Counts from 1, and goes on when old rows are dropped. */
  seq: number;
  /** Seconds since the log began. */
  at_s: number;
  source: Source;
  direction: Direction;
  type: string;
  /** Bytes as they were on the line. */
  size: number;
  /** JSON, with its sound and pictures cut out, at most 4,096 characters. */
  text: string;
  is_error: boolean;
}

/** Neighbours of one type that come in pieces, such as deltas, are one line. */
export interface Run {
  first: Row;
  last: Row;
  count: number;
  size: number;
}

const MAX_ROWS = 20_000;
const DROP_AT_ONCE = 1000;
const MAX_TEXT = 4096;
const MAX_STRING = 512;
const PIECES = /(?:\.delta|\.append|_delta)$|^(?:audio_chunk|chunk|prefill|input\.append|result)$/;
const BASE64 = /^(?:data:[\w/+.-]+(?:;[\w=-]+)*;base64,)?[A-Za-z0-9+/_-]{256}[A-Za-z0-9+/_=-]*$/;

const mebibytes = (bytes: number): string => (bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${(bytes / 1000).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** A message without its sound: what is base64 and long is replaced by its size. */
function cutOut(_key: string, value: unknown): unknown {
  if (typeof value !== 'string' || value.length < MAX_STRING || !BASE64.test(value)) return value;
  return `‹${mebibytes(Math.floor((value.length * 3) / 4))} of base64›`;
}

class EventLog {
  #began = performance.now();
  #rows: Row[] = [];
  #runs: Run[] = [];
  /** Rises when there is something new. */
  version = $state(0);
  /** How many old rows were dropped. */
  dropped = $state(0);

  /** Note a message. `size` is its length on the line, if it isn't that of its JSON. */
  note(source: Source, direction: Direction, type: string, body: unknown, size?: number): void {
    const whole = typeof body === 'string' ? body : (JSON.stringify(body, cutOut) ?? '');
    const text = whole.length > MAX_TEXT ? whole.slice(0, MAX_TEXT) + '…' : whole;
    const seq = (this.#rows.at(-1)?.seq ?? 0) + 1;
    const at_s = Math.round(performance.now() - this.#began) / 1000;
    const is_error = type === 'error' || type === 'response.failed' || type === 'session.failed' || /^[45]\d\d /.test(type);
    const row: Row = { seq, at_s, source, direction, type, size: size ?? whole.length, text, is_error };
    this.#rows.push(row);
    if (this.#rows.length > MAX_ROWS) this.#drop();
    else this.#fold(row);
    this.#tell();
  }

  /** All rows, oldest first. Don't change them. */
  get rows(): readonly Row[] {
    return this.#rows;
  }

  /** The same with deltas folded. */
  get runs(): readonly Run[] {
    return this.#runs;
  }

  clear(): void {
    this.#rows = [];
    this.#runs = [];
    this.dropped = 0;
    this.#began = performance.now();
    this.#tell();
  }

  #fold(row: Row): void {
    const run = this.#runs.at(-1);
    const goesOn = run && PIECES.test(row.type) && run.last.type === row.type && run.last.source === row.source && run.last.direction === row.direction;
    if (goesOn) {
      run.last = row;
      run.count += 1;
      run.size += row.size;
    } else this.#runs.push({ first: row, last: row, count: 1, size: row.size });
  }

  #drop(): void {
    this.#rows = this.#rows.slice(DROP_AT_ONCE);
    this.dropped += DROP_AT_ONCE;
    this.#runs = [];
    this.#rows.forEach((row) => this.#fold(row));
  }

  readonly #tell = oncePerFrame(() => (this.version += 1));
}

export const eventLog = new EventLog();

/** A row as recordings have it in `events.jsonl`, which `antiphon sessions replay` reads. */
export const recorded = ({ seq, at_s, direction, text, type }: Row): string => {
  let event: unknown;
  try {
    event = JSON.parse(text);
  } catch {
    event = { type, text };
  }
  return JSON.stringify({ seq, at_s, direction: direction === 'sent' ? 'in' : 'out', event });
};

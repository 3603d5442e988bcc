import { Resampler } from '../resampler';

/** To the worklet: sound of an item, or an end to all that waits. `samples` is the buffer of an Int16Array, or a Float32Array's. */
export type PlaybackOrder = { play: ArrayBuffer; item: string; format: 's16' | 'f32' } | { flush: true };

/** From the worklet. */
export type PlaybackNews =
  /** Some thirty times a second: how loud it is, the item that sounds (empty: none), what was heard of it, what waits behind it, and how many orders came. */
  | { peak: number; item: string; heard_ms: number; waiting_ms: number; taken: number }
  /** What was cut off by `flush`: an item that waited has heard nothing. */
  | { cut: { item: string; heard_ms: number }[] };

interface Piece {
  item: string;
  samples: Float32Array;
}

const BLOCKS_A_REPORT = 12;
/** Sound that ran dry within an item waits for this much before it goes on, but not longer: one pause rather than many. */
const REFILL_MS = 160;

/** A queue of sound. A flush takes effect in the next block of 128 samples. */
class Playback extends AudioWorkletProcessor {
  readonly #rate: number;
  readonly #per_ms = sampleRate / 1000;
  #resampler: Resampler;
  #queue: Piece[] = [];
  #at = 0;
  #waiting = 0;
  #item = '';
  #heard = 0;
  #peak = 0;
  #refill = 0;
  #blocks = 0;
  #taken = 0;

  constructor(options: { processorOptions: { rate: number } }) {
    super();
    this.#rate = options.processorOptions.rate;
    this.#resampler = new Resampler(this.#rate, sampleRate);
    this.port.onmessage = ({ data }: MessageEvent<PlaybackOrder>) => {
      this.#taken += 1;
      if ('flush' in data) this.#flush();
      else this.#add(data);
    };
  }

  #add({ play, item, format }: { play: ArrayBuffer; item: string; format: 's16' | 'f32' }): void {
    const given = format === 'f32' ? new Float32Array(play) : Float32Array.from(new Int16Array(play), (sample) => sample / 32768);
    const samples = this.#resampler.push(given);
    if (!this.#queue.length && item === this.#item) this.#refill = REFILL_MS * this.#per_ms;
    this.#queue.push({ item, samples });
    this.#waiting += samples.length;
  }

  #flush(): void {
    const items = new Set(this.#queue.map((piece) => piece.item));
    const cut = [...items].map((item) => ({ item, heard_ms: item === this.#item ? this.#heard / this.#per_ms : 0 }));
    this.#queue = [];
    this.#at = this.#waiting = this.#heard = this.#refill = 0;
    this.#item = '';
    this.#resampler = new Resampler(this.#rate, sampleRate);
    this.#post({ cut });
  }

  process(_inputs: Float32Array[][], outputs: Float32Array[][]): boolean {
    const [first, ...others] = outputs[0]!;
    for (let index = 0; index < first!.length; index++) {
      const sample = this.#next();
      first![index] = sample;
      this.#peak = Math.max(this.#peak, Math.abs(sample));
    }
    for (const other of others) other.set(first!);
    if (++this.#blocks % BLOCKS_A_REPORT === 0) {
      this.#post({ peak: this.#peak, item: this.#queue.length ? this.#item : '', heard_ms: this.#heard / this.#per_ms, waiting_ms: this.#waiting / this.#per_ms, taken: this.#taken });
      this.#peak = 0;
    }
    return true;
  }

  #next(): number {
    const head = this.#queue[0];
    if (!head) return 0;
    if (this.#refill > 0 && this.#waiting < REFILL_MS * this.#per_ms) {
      this.#refill -= 1;
      return 0;
    }
    this.#refill = 0;
    if (head.item !== this.#item) {
      this.#item = head.item;
      this.#heard = 0;
    }
    const sample = head.samples[this.#at++] ?? 0;
    this.#heard += 1;
    this.#waiting -= 1;
    if (this.#at >= head.samples.length) {
      this.#queue.shift();
      this.#at = 0;
    }
    return sample;
  }

  #post(news: PlaybackNews): void {
    this.port.postMessage(news);
  }
}

registerProcessor('playback', Playback);

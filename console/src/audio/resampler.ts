/**
 * Changes the rate of a stream of samples, piece by piece: a windowed sinc, 32 samples wide at the lower rate, with 256 fractions of a
 * sample tabulated. Microphones and loudspeakers keep their own rate, as Firefox gives no microphone at another than the context's.
 */
const HALF_WIDTH = 16;
const FRACTIONS = 256;

export class Resampler {
  readonly #step: number;
  readonly #reach: number;
  readonly #taps: Float32Array[];
  #kept: Float32Array;
  /** Where the next output sample lies among the kept samples. */
  #at: number;

  constructor(from: number, to: number) {
    this.#step = from / to;
    const cutoff = Math.min(1, to / from);
    this.#reach = Math.ceil(HALF_WIDTH / cutoff);
    this.#taps = from === to ? [] : Array.from({ length: FRACTIONS }, (_, index) => taps(index / FRACTIONS, this.#reach, cutoff));
    this.#kept = new Float32Array(this.#reach - 1);
    this.#at = this.#reach - 1;
  }

  /** What can be told of these samples and those before; the last few wait for the next. */
  push(samples: Float32Array): Float32Array {
    if (!this.#taps.length) return samples.slice();
    const all = new Float32Array(this.#kept.length + samples.length);
    all.set(this.#kept);
    all.set(samples, this.#kept.length);
    const count = Math.max(0, Math.ceil((all.length - this.#reach - this.#at) / this.#step));
    const out = new Float32Array(count);
    for (let index = 0; index < count; index++) {
      const place = this.#at + index * this.#step;
      const whole = Math.floor(place);
      const weights = this.#taps[Math.floor((place - whole) * FRACTIONS)]!;
      const first = whole - this.#reach + 1;
      let sum = 0;
      for (let tap = 0; tap < weights.length; tap++) sum += weights[tap]! * all[first + tap]!;
      out[index] = sum;
    }
    const next = this.#at + count * this.#step;
    const drop = Math.max(0, Math.floor(next) - this.#reach + 1);
    this.#kept = all.slice(drop);
    this.#at = next - drop;
    return out;
  }
}

/** The weights of the samples from `reach - 1` before a place to `reach` behind it. */
function taps(fraction: number, reach: number, cutoff: number): Float32Array {
  const weights = new Float32Array(2 * reach);
  let sum = 0;
  for (let index = 0; index < weights.length; index++) {
    const distance = index - reach + 1 - fraction;
    const window = 0.5 + 0.5 * Math.cos((Math.PI * distance) / reach);
    const angle = Math.PI * distance * cutoff;
    weights[index] = Math.abs(distance) > reach ? 0 : (angle === 0 ? 1 : Math.sin(angle) / angle) * window;
    sum += weights[index]!;
  }
  return weights.map((weight) => weight / sum);
}

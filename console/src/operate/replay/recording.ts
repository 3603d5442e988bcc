import { request } from '../../lib/api';
import type { Row, Run } from '../../lib/event_log.svelte';
import { captionsOf, type Caption } from './captions';
import { endOf, isSound, mediaIn, Tracks, type Line, type Side } from './tracks';

/** What a recording has, on one clock: sound of both sides, words, pictures, events. */
export interface Timeline {
  duration_s: number;
  /** 24 kHz, stereo, s16le as a WAV file: the person on the left, the model on the right. Null without any sound. */
  sound: Blob | null;
  /** The loudest sample of each stretch, 0 to 1, of both sides. */
  peaks: Record<Side, Float32Array>;
  captions: Caption[];
  frames: { at_s: number; name: string }[];
  runs: Run[];
}

export const MAX_MINUTES = 30;
const RATE = 24_000;
const HEADER = 44;
const BINS = 1200;
const SLICE_MS = 12;
const PIECES = /(?:\.delta|\.append|_delta)$/;

/** Let the page live between two slices of work. */
const breathe = (): Promise<void> => new Promise((done) => setTimeout(done));

interface SoundFile {
  rate: number;
  samples: Int16Array;
}

/** Read a recording, and lay it out. */
export async function readTimeline(id: string, signal: AbortSignal): Promise<Timeline> {
  const path = `/v1/sessions/${encodeURIComponent(id)}`;
  const text = await (await request(`${path}/events`, { signal })).text();
  const lines = text.split('\n').filter(Boolean).map((line) => JSON.parse(line) as Line);
  const files = await fetchSounds(lines, path, signal);
  const tracks = new Tracks();
  for (const line of lines) tracks.add(line, (file) => files.get(file)!.rate);
  const duration_s = Math.max(tracks.end_s, lines.at(-1)?.at_s ?? 0);
  const hasSound = files.size > 0 && duration_s <= MAX_MINUTES * 60;
  const { sound, peaks } = hasSound ? await mix(tracks, files, duration_s) : { sound: null, peaks: { in: new Float32Array(BINS), out: new Float32Array(BINS) } };
  return { duration_s, sound, peaks, captions: captionsOf(lines, tracks), frames: framesOf(lines), runs: runsOf(lines) };
}

async function fetchSounds(lines: Line[], path: string, signal: AbortSignal): Promise<Map<string, SoundFile>> {
  const names = new Set(lines.filter(({ direction }) => direction !== 'internal').flatMap(({ event }) => mediaIn(event).filter(isSound).map(({ $media }) => $media)));
  return new Map(await Promise.all([...names].map(async (name) => [name, await fetchSound(`${path}/files/${name}`, signal)] as const)));
}

async function fetchSound(path: string, signal: AbortSignal): Promise<SoundFile> {
  const data = await (await request(path, { signal })).arrayBuffer();
  const rate = new DataView(data).getUint32(24, true);
  return { rate, samples: new Int16Array(data, HEADER, Math.floor((data.byteLength - HEADER) / 2)) };
}

async function mix(tracks: Tracks, files: Map<string, SoundFile>, duration_s: number): Promise<Pick<Timeline, 'peaks'> & { sound: Blob }> {
  const frames = Math.ceil(duration_s * RATE);
  const both = new Int16Array(frames * 2);
  const peaks = { in: new Float32Array(BINS), out: new Float32Array(BINS) };
  let until = performance.now() + SLICE_MS;
  for (const side of ['in', 'out'] as const) {
    for (const piece of tracks[side]) {
      const { rate, samples } = files.get(piece.media.$media)!;
      const [begin, end] = [Math.round(piece.begin_s * RATE), Math.min(frames, Math.round(endOf(piece) * RATE))];
      const first = (piece.media.offset ?? 0) / 2;
      for (let at = begin; at < end; at += 1) {
        const sample = samples[first + Math.floor(((at - begin) * rate) / RATE)] ?? 0;
        both[at * 2 + (side === 'in' ? 0 : 1)] = sample;
        const bin = Math.min(BINS - 1, Math.floor((at / frames) * BINS));
        if (Math.abs(sample) / 32768 > peaks[side][bin]!) peaks[side][bin] = Math.abs(sample) / 32768;
      }
      if (performance.now() > until) {
        await breathe();
        until = performance.now() + SLICE_MS;
      }
    }
  }
  return { sound: new Blob([header(both.byteLength), both], { type: 'audio/wav' }), peaks };
}

function header(bytes: number): ArrayBuffer {
  const view = new DataView(new ArrayBuffer(HEADER));
  const word = (at: number, text: string): void => [...text].forEach((letter, index) => view.setUint8(at + index, letter.charCodeAt(0)));
  word(0, 'RIFF');
  view.setUint32(4, 36 + bytes, true);
  word(8, 'WAVEfmt ');
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 2, true);
  view.setUint32(24, RATE, true);
  view.setUint32(28, RATE * 4, true);
  view.setUint16(32, 4, true);
  view.setUint16(34, 16, true);
  word(36, 'data');
  view.setUint32(40, bytes, true);
  return view.buffer;
}

function framesOf(lines: Line[]): Timeline['frames'] {
  return lines.flatMap(({ at_s, event }) => mediaIn(event).filter(({ $media }) => $media.startsWith('frames/')).map(({ $media }) => ({ at_s, name: $media })));
}

/** The events as rows of the log, pieces of one kind folded. */
function runsOf(lines: Line[]): Run[] {
  const runs: Run[] = [];
  for (const { seq, at_s, direction, event } of lines) {
    const text = JSON.stringify(event);
    const type = event.type ?? direction;
    const row: Row = { seq, at_s, source: 'operate', direction: direction === 'in' ? 'sent' : 'came', type, size: text.length, text, is_error: type === 'error' };
    const last = runs.at(-1);
    if (last && PIECES.test(type) && last.last.type === type && last.last.direction === row.direction) {
      last.last = row;
      last.count += 1;
      last.size += row.size;
    } else runs.push({ first: row, last: row, count: 1, size: row.size });
  }
  return runs;
}

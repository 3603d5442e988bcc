import { request } from '../../lib/api';
import type { Row, Run } from '../../lib/event_log.svelte';

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

export type Side = 'in' | 'out';

export interface Caption {
  side: Side;
  at_s: number;
  text: string;
}

interface Line {
  seq: number;
  at_s: number;
  direction: 'in' | 'out' | 'internal';
  event: Record<string, unknown> & { type?: string };
}

interface Piece {
  file: string;
  /** Bytes of sound in the file, before this piece. */
  offset: number;
  bytes: number;
  begin_s: number;
  /** Where it was cut, by what the person said meanwhile. */
  end_s: number;
}

interface Media {
  $media: string;
  offset?: number;
  bytes?: number;
}

export const MAX_MINUTES = 30;
const RATE = 24_000;
const HEADER = 44;
const BINS = 1200;
const SLICE_MS = 12;
const PIECES = /(?:\.delta|\.append|_delta)$/;

/** Let the page live between two slices of work. */
const breathe = (): Promise<void> => new Promise((done) => setTimeout(done));

/** The reference to a file in an event, wherever in it that is. */
function mediaIn(value: unknown, depth = 0): Media | null {
  if (value === null || typeof value !== 'object' || depth > 5) return null;
  if ('$media' in value) return value as Media;
  for (const each of Object.values(value)) {
    const found = mediaIn(each, depth + 1);
    if (found) return found;
  }
  return null;
}

/** Read a recording, and lay it out. */
export async function readTimeline(id: string, signal: AbortSignal): Promise<Timeline> {
  const path = `/v1/sessions/${encodeURIComponent(id)}`;
  const text = await (await request(`${path}/events`, { signal })).text();
  const lines = text.split('\n').filter(Boolean).map((line) => JSON.parse(line) as Line);
  const sides = await layOut(lines, path, signal);
  const ends = [...sides.in.pieces, ...sides.out.pieces].map((piece) => piece.end_s);
  const duration_s = ends.reduce((most, end) => Math.max(most, end), lines.at(-1)?.at_s ?? 0);
  const hasSound = ends.length > 0 && duration_s <= MAX_MINUTES * 60;
  const { sound, peaks } = hasSound ? await mix(sides, duration_s) : { sound: null, peaks: { in: new Float32Array(BINS), out: new Float32Array(BINS) } };
  return { duration_s, sound, peaks, captions: captionsOf(lines), frames: framesOf(lines), runs: runsOf(lines) };
}

interface Track {
  pieces: Piece[];
  files: Map<string, { rate: number; samples: Int16Array }>;
}

async function layOut(lines: Line[], path: string, signal: AbortSignal): Promise<Record<Side, Track>> {
  const tracks: Record<Side, Track> = { in: { pieces: [], files: new Map() }, out: { pieces: [], files: new Map() } };
  for (const { at_s, direction, event } of lines) {
    if (direction === 'internal') continue;
    if (interrupts(event)) cut(tracks.out.pieces, at_s);
    const media = mediaIn(event);
    if (!media || !/^(?:in|out)(?:-\d+)?\.wav$/.test(media.$media) || !media.bytes) continue;
    const track = tracks[media.$media.startsWith('in') ? 'in' : 'out'];
    const file = track.files.get(media.$media) ?? (await fetchSound(`${path}/files/${media.$media}`, signal));
    track.files.set(media.$media, file);
    // Sound that came faster than it is heard waits for what came before it.
    const begin_s = Math.max(at_s, track.pieces.at(-1)?.end_s ?? 0);
    track.pieces.push({ file: media.$media, offset: media.offset ?? 0, bytes: media.bytes, begin_s, end_s: begin_s + media.bytes / 2 / file.rate });
  }
  return tracks;
}

const interrupts = ({ type }: Line['event']): boolean => type === 'input_audio_buffer.speech_started' || type === 'response.cancel' || type === 'conversation.item.truncate';

/** What was not yet heard at this time never is. */
function cut(pieces: Piece[], at_s: number): void {
  while (pieces.length && pieces.at(-1)!.begin_s >= at_s) pieces.pop();
  const last = pieces.at(-1);
  if (last && last.end_s > at_s) last.end_s = at_s;
}

async function fetchSound(path: string, signal: AbortSignal): Promise<{ rate: number; samples: Int16Array }> {
  const data = await (await request(path, { signal })).arrayBuffer();
  const rate = new DataView(data).getUint32(24, true);
  return { rate, samples: new Int16Array(data, HEADER, Math.floor((data.byteLength - HEADER) / 2)) };
}

async function mix(tracks: Record<Side, Track>, duration_s: number): Promise<Pick<Timeline, 'peaks'> & { sound: Blob }> {
  const frames = Math.ceil(duration_s * RATE);
  const both = new Int16Array(frames * 2);
  const peaks = { in: new Float32Array(BINS), out: new Float32Array(BINS) };
  let until = performance.now() + SLICE_MS;
  for (const side of ['in', 'out'] as const) {
    for (const piece of tracks[side].pieces) {
      const { rate, samples } = tracks[side].files.get(piece.file)!;
      const [begin, end] = [Math.floor(piece.begin_s * RATE), Math.min(frames, Math.floor(piece.end_s * RATE))];
      const first = piece.offset / 2;
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

/** Who said what, by the items of the conversation; of MiniCPM-o, until the model listens again. */
function captionsOf(lines: Line[]): Caption[] {
  const captions = new Map<string, Caption>();
  const began = new Map<string, number>();
  let turn = 0;
  const add = (id: string, side: Side, at_s: number, text: string): void => {
    const caption = captions.get(id);
    if (caption) caption.text += text;
    else if (text) captions.set(id, { side, at_s: began.get(id) ?? at_s, text });
  };
  for (const { at_s, event, seq } of lines) {
    const item = String(event.item_id ?? seq);
    const type = event.type ?? '';
    if (type === 'input_audio_buffer.speech_started') began.set(item, at_s);
    else if (type === 'conversation.item.input_audio_transcription.completed' || type === 'input_transcript') {
      if (!captions.has(item)) add(item, 'in', at_s, String(event.transcript ?? event.text ?? ''));
    } else if (type === 'conversation.item.create') add(String(seq), 'in', at_s, wordsOf(event.item));
    else if (/^response\.(?:output_)?(?:audio_transcript|text)\.delta$/.test(type)) add(item, 'out', at_s, String(event.delta ?? ''));
    else if (type === 'response.output.delta') {
      if (event.kind === 'listen') turn += 1;
      add(`turn ${turn}`, 'out', at_s, typeof event.text === 'string' ? event.text : '');
    }
  }
  return [...captions.values()].sort((a, b) => a.at_s - b.at_s);
}

function wordsOf(item: unknown): string {
  const content = (item as { content?: { text?: string }[] } | null)?.content;
  return Array.isArray(content) ? content.map((part) => part.text ?? '').join('') : '';
}

function framesOf(lines: Line[]): Timeline['frames'] {
  return lines.flatMap(({ at_s, event }) => {
    const media = mediaIn(event);
    return media?.$media.startsWith('frames/') ? [{ at_s, name: media.$media }] : [];
  });
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

/** A line of `events.jsonl`. */
export interface Line {
  seq: number;
  at_s: number;
  direction: 'in' | 'out' | 'internal';
  event: RecordedEvent;
}

export type RecordedEvent = Record<string, unknown> & { type?: string };

export type Side = 'in' | 'out';

/** Where the sound or the picture of an event is, in bytes without the header. */
export interface Media {
  $media: string;
  offset?: number;
  bytes?: number;
}

/** The sound of one event, on the recording's clock. */
export interface Piece {
  media: Media;
  rate: number;
  begin_s: number;
  /** How long all of it is, and how much of that was heard. */
  length_s: number;
  heard_s: number;
  item: string;
  response: string;
}

/** How far from its pace sound may arrive and still be continuous. */
const MAX_JITTER_S = 0.3;
const SOUND = /^(in|out)(?:-\d+)?\.wav$/;
const DEPTH = 8;

/** The references to files in an event, wherever in it they are. */
export function mediaIn(value: unknown, depth = 0): Media[] {
  if (value === null || typeof value !== 'object' || depth > DEPTH) return [];
  return '$media' in value ? [value as Media] : Object.values(value).flatMap((each) => mediaIn(each, depth + 1));
}

export const isSound = (media: Media): boolean => SOUND.test(media.$media) && Boolean(media.bytes);

export const endOf = (piece: Piece): number => piece.begin_s + piece.heard_s;

/**
 * The sound of both sides, as a player would have played it: sound that came faster than it is heard follows what came before it, and what was
 * dropped, as the person interrupted, was not heard. `antiphon sessions export` mixes by the same rules.
 */
export class Tracks {
  readonly in: Piece[] = [];
  readonly out: Piece[] = [];
  #ends: Record<Side, number> = { in: 0, out: 0 };

  /** Take in the next line. `rateOf` knows the samples a second of a file. */
  add(line: Line, rateOf: (file: string) => number): void {
    if (line.direction === 'internal') return;
    if (line.direction === 'out') this.#cut(line);
    for (const media of mediaIn(line.event).filter(isSound)) this.#place(line, line.direction, media, rateOf(media.$media));
  }

  get end_s(): number {
    return Math.max(this.#ends.in, this.#ends.out);
  }

  /** When what is at this place in all that the person said was said. */
  saidAt(position_ms: number): number | null {
    let before_s = 0;
    for (const piece of this.in) {
      if (position_ms / 1000 < before_s + piece.length_s) return piece.begin_s + Math.max(0, position_ms / 1000 - before_s);
      before_s += piece.length_s;
    }
    return null;
  }

  #place({ at_s, event }: Line, side: Side, media: Media, rate: number): void {
    const length_s = media.bytes! / 2 / rate;
    // A microphone sends sound when it is over, a server before it is heard.
    const came_s = side === 'out' ? at_s : Math.max(0, at_s - length_s);
    const begin_s = came_s <= this.#ends[side] + (side === 'in' ? MAX_JITTER_S : 0) ? this.#ends[side] : came_s;
    this.#ends[side] = begin_s + length_s;
    this[side].push({ media, rate, begin_s, length_s, heard_s: length_s, item: String(event.item_id ?? ''), response: String(event.response_id ?? '') });
  }

  #cut({ at_s, event }: Line): void {
    if (event.type === 'conversation.item.truncated') {
      let rest_s = Number(event.audio_end_ms) / 1000;
      for (const piece of this.out.filter(({ item }) => item === event.item_id)) {
        piece.heard_s = Math.max(0, Math.min(piece.heard_s, rest_s));
        rest_s -= piece.length_s;
      }
    } else if (isDropped(event)) {
      for (let at = this.out.length - 1; at >= 0 && this.out[at]!.begin_s + this.out[at]!.length_s > at_s; at -= 1) {
        const piece = this.out[at]!;
        piece.heard_s = Math.max(0, Math.min(piece.heard_s, at_s - piece.begin_s));
      }
    } else return;
    const last = this.out.findLast((piece) => piece.heard_s > 0);
    this.#ends.out = last ? endOf(last) : 0;
  }
}

/** Whether the client drops all that it has not played yet: in Realtime a cancelled response or a call's cleared buffer, in MiniCPM-o an interruption. */
function isDropped({ type, response, interrupted }: RecordedEvent): boolean {
  if (type === 'response.done') return (response as { status?: string } | undefined)?.status === 'cancelled';
  return type === 'output_audio_buffer.cleared' || Boolean(interrupted);
}

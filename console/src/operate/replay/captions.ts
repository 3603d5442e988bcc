import type { Line, RecordedEvent, Side, Tracks } from './tracks';

export interface Caption {
  side: Side;
  at_s: number;
  text: string;
  /** Whether it was cut off before its end was heard. */
  isCut: boolean;
}

type Content = string | { type?: string; text?: string; transcript?: string }[] | null | undefined;
interface Message { role?: string; content?: Content }

const SPOKEN = /^response\.(?:output_)?(?:audio_transcript|text)\.delta$/;
const MARKS: Record<string, string> = { image: '(picture)', image_url: '(picture)', input_image: '(picture)', video: '(picture)', audio: '(sound)', input_audio: '(sound)' };

/** Who said what, and when that was heard, in either protocol. */
export function captionsOf(lines: Line[], tracks: Tracks): Caption[] {
  const reader = new Reader(tracks);
  for (const line of lines) reader.read(line);
  return reader.captions();
}

class Reader {
  #tracks: Tracks;
  /** By item or response. */
  #said = new Map<string, Caption & { response: string }>();
  #began = new Map<string, number>();

  constructor(tracks: Tracks) {
    this.#tracks = tracks;
  }

  captions(): Caption[] {
    for (const [id, caption] of this.#said) {
      // Words come before the sound in which they are heard.
      const first = caption.side === 'out' && this.#tracks.out.find(({ item, response }) => item === id || response === id);
      if (first) caption.at_s = Math.max(caption.at_s, first.begin_s);
    }
    return [...this.#said.values()].filter((caption) => caption.text).sort((a, b) => a.at_s - b.at_s);
  }

  read({ at_s, direction, event, seq }: Line): void {
    const type = event.type ?? '';
    if (direction === 'in') this.#readClient(`line ${seq}`, at_s, event);
    else if (type === 'input_audio_buffer.speech_started') this.#began.set(String(event.item_id), at_s);
    else if (type === 'conversation.item.input_audio_transcription.completed' || type === 'input_transcript') this.#hear(event, at_s, seq);
    else if (SPOKEN.test(type)) this.#add(String(event.item_id), 'out', at_s, event.delta, event.response_id);
    else if (type === 'response.output.delta') this.#readOutput(event, at_s);
    else if (type === 'response.done') this.#readDone(event, at_s);
    else if (type === 'conversation.item.truncated') this.#cutItem(event);
  }

  #readClient(id: string, at_s: number, event: RecordedEvent): void {
    const asked = (event.input as { messages?: Message[] } | undefined)?.messages?.at(-1) ?? (event.type === 'conversation.item.create' ? (event.item as Message) : undefined);
    if (asked?.role === 'user') this.#add(id, 'in', at_s, wordsOf(asked.content));
  }

  #hear(event: RecordedEvent, at_s: number, seq: number): void {
    const item = String(event.item_id ?? `line ${seq}`);
    if (this.#said.has(item)) return;
    const said_s = typeof event.start_ms === 'number' ? this.#tracks.saidAt(event.start_ms) : null;
    this.#add(item, 'in', this.#began.get(item) ?? Math.min(at_s, said_s ?? at_s), event.transcript);
  }

  #readOutput(event: RecordedEvent, at_s: number): void {
    const id = String(event.response_id);
    const caption = this.#said.get(id);
    if (event.kind !== 'listen') this.#add(id, 'out', at_s, event.text);
    else if (caption && event.interrupted) caption.isCut = true;
  }

  /** In MiniCPM-o's chat mode without streaming it has the whole answer. */
  #readDone(event: RecordedEvent, at_s: number): void {
    const { id, status } = (event.response ?? {}) as { id?: string; status?: string };
    if (status === 'cancelled') for (const caption of this.#said.values()) if (caption.response === id) caption.isCut = true;
    if (event.response_id && !this.#said.has(String(event.response_id))) this.#add(String(event.response_id), 'out', at_s, event.text);
  }

  #cutItem(event: RecordedEvent): void {
    const all_s = this.#tracks.out.filter(({ item }) => item === event.item_id).reduce((sum, piece) => sum + piece.length_s, 0);
    const caption = this.#said.get(String(event.item_id));
    if (caption && Number(event.audio_end_ms) < Math.floor(all_s * 1000)) caption.isCut = true;
  }

  #add(id: string, side: Side, at_s: number, text: unknown, response: unknown = ''): void {
    if (typeof text !== 'string') return;
    const caption = this.#said.get(id);
    if (caption) caption.text += text;
    else this.#said.set(id, { side, at_s, text, isCut: false, response: String(response) });
  }
}

const wordsOf = (content: Content): string =>
  typeof content === 'string' ? content : (content ?? []).map((part) => part.text || part.transcript || (MARKS[part.type ?? ''] ?? '')).filter(Boolean).join(' ');

import type { Row } from '../lib/event_log.svelte';

/** TOML of the engine `scripted` that answers as these messages show: what was asked is matched, what came is played at its pace. */
interface Answer {
  when: string | null;
  to: 'message' | 'result';
  lines: string[];
}

interface Body {
  type?: string;
  [name: string]: unknown;
}

const LEAST_WAIT_MS = 20;
const MOST_WAIT_MS = 60_000;
const MOST_WORDS = 200;
const WORDS = new Set(['response.output_text.delta', 'response.text.delta', 'response.output_audio_transcript.delta', 'response.audio_transcript.delta']);
const THOUGHTS: Record<string, string> = { 'response.reasoning_text.delta': 'reasoning', 'response.reasoning_summary_text.delta': 'summary', 'response.refusal.delta': 'refusal' };

/** A basic string of TOML: JSON's, but for DEL, which it wants escaped, and halves of characters, which it forbids. */
export const quoted = (text: string): string => JSON.stringify(text.toWellFormed()).replace(/\x7f/g, '\\u007f');

/** A regular expression of Python's that finds this text, whole if it is short. */
function pattern(text: string): string {
  const start = text.slice(0, MOST_WORDS).toWellFormed().replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
  return text.length <= MOST_WORDS ? `^${start}$` : `^${start}`;
}

const record = (value: unknown): Record<string, unknown> => (value !== null && typeof value === 'object' ? (value as Record<string, unknown>) : {});
const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);

/** The words of a message's content, or of what a tool gave. */
function wordsOf(content: unknown): string {
  if (typeof content === 'string') return content;
  return list(content).map((part) => String(record(part).text ?? '')).join('');
}

/** What the last item of a request asks: the words, and whether they are a tool's. */
function asked(input: unknown): Pick<Answer, 'when' | 'to'> | null {
  if (typeof input === 'string') return { when: pattern(input), to: 'message' };
  const item = record(list(input).at(-1));
  if (String(item.type ?? '').endsWith('_output')) return { when: pattern(wordsOf(item.output)), to: 'result' };
  const words = wordsOf(item.content);
  return words ? { when: pattern(words), to: 'message' } : null;
}

class Writer {
  answers: Answer[] = [];
  hears: string[] = [];
  speech: string[] = [];
  lost = 0;
  #question: Pick<Answer, 'when' | 'to'> = { when: null, to: 'message' };
  #answer: Answer | null = null;
  #kind = '';
  #text = '';
  #at_s = 0;
  #turn = 0;
  #speaks_ms: number | null = null;

  read(row: Row): void {
    let body: Body;
    try {
      body = JSON.parse(row.text) as Body;
    } catch {
      this.lost += 1;
      if (row.direction === 'sent') this.#question = { when: null, to: 'message' };
      return;
    }
    if (row.direction === 'sent') this.#ask(row, body);
    else this.#come(row, body);
  }

  end(): void {
    this.#flush();
    this.#answer = null;
  }

  #ask(row: Row, body: Body): void {
    if (row.type === 'POST /v1/responses') this.#question = asked(body.input) ?? { when: null, to: 'message' };
    else if (row.type === 'conversation.item.create') this.#question = asked([body.item]) ?? this.#question;
  }

  #come(row: Row, body: Body): void {
    if (row.type === 'session.created') this.#session();
    else if (row.type === 'response.created') this.#begin(row);
    else if (row.type.startsWith('input_audio_buffer.') || row.type.includes('input_audio_transcription.')) this.#hear(row.type, body);
    else if (this.#answer) this.#say(row, body);
  }

  #session(): void {
    this.hears = [];
    this.speech = [];
    this.#turn = 0;
    this.#speaks_ms = null;
  }

  #begin(row: Row): void {
    this.end();
    this.#answer = { ...this.#question, lines: [] };
    this.answers.push(this.#answer);
    this.#at_s = row.at_s;
  }

  #hear(type: string, body: Body): void {
    if (type.endsWith('speech_started')) this.#speaks_ms = Number(body.audio_start_ms);
    if (type.endsWith('speech_stopped') && this.#speaks_ms !== null) this.speech.push(`  { at_ms = ${this.#speaks_ms}, until_ms = ${Number(body.audio_end_ms)} },`);
    if (type.endsWith('.committed')) this.#turn += 1;
    if (!type.endsWith('transcription.completed') || this.#turn === 0) return;
    const says = String(body.transcript ?? '');
    this.hears.push(`  { turn = ${this.#turn}, says = ${quoted(says)} },`);
    const question = { when: pattern(says), to: 'message' as const };
    this.#question = question;
    // The words may come after the answer to them has begun.
    if (this.#answer && this.#answer.when === null) Object.assign(this.#answer, question);
  }

  #say(row: Row, body: Body): void {
    const kind = WORDS.has(row.type) ? 'text' : (THOUGHTS[row.type] ?? '');
    if (kind) return this.#add(kind, String(body.delta ?? ''), row);
    if (row.type === 'response.output_item.done') this.#call(row, record(body.item));
    const response = record(body.response);
    const status = row.type === 'response.failed' || response.status === 'failed' ? 'failed' : String(response.status ?? '');
    if (!['response.completed', 'response.incomplete', 'response.failed', 'response.done'].includes(row.type)) return;
    this.#flush();
    this.#finish(status, response);
    this.#answer = null;
  }

  #finish(status: string, response: Record<string, unknown>): void {
    const error = record(response.error ?? record(response.status_details).error);
    if (status === 'failed') this.#answer!.lines.push(`{ failure = { message = ${quoted(String(error.message ?? 'It failed.'))} } }`);
    const reason = String(record(response.incomplete_details ?? response.status_details).reason ?? '');
    if (status === 'incomplete') this.#answer!.lines.push(`{ finish_reason = ${quoted(reason.includes('filter') ? 'content_filter' : 'length')} }`);
  }

  #call(row: Row, item: Record<string, unknown>): void {
    const isCustom = item.type === 'custom_tool_call';
    if (item.type !== 'function_call' && !isCustom) return;
    this.#flush();
    this.#wait(row);
    const input = isCustom ? `input = ${quoted(String(item.input ?? ''))}` : `arguments = ${quoted(String(item.arguments ?? '{}'))}`;
    const id = typeof item.call_id === 'string' ? `, call_id = ${quoted(item.call_id)}` : '';
    this.#answer!.lines.push(`{ call = ${quoted(String(item.name ?? ''))}, ${input}${id} }`);
  }

  #add(kind: string, text: string, row: Row): void {
    const waits = (row.at_s - this.#at_s) * 1000 >= LEAST_WAIT_MS;
    if (kind !== this.#kind || waits) this.#flush();
    this.#wait(row);
    this.#kind = kind;
    this.#text += text;
  }

  #wait(row: Row): void {
    const wait_ms = Math.min(MOST_WAIT_MS, Math.round((row.at_s - this.#at_s) * 1000));
    this.#at_s = row.at_s;
    if (wait_ms >= LEAST_WAIT_MS) this.#answer!.lines.push(`{ wait_ms = ${wait_ms} }`);
  }

  #flush(): void {
    const lines = this.#answer?.lines ?? [];
    const text = quoted(this.#text);
    // A server may send reasoning as its own summary, too, and so does the engine when it plays it.
    if (this.#text && !(this.#kind === 'summary' && lines.includes(`{ reasoning = ${text} }`))) lines.push(`{ ${this.#kind} = ${text} }`);
    this.#text = '';
  }
}

/** The script, and how many answers it has. */
export function scriptOf(rows: readonly Row[]): { toml: string; answers: number } {
  const writer = new Writer();
  rows.forEach((row) => writer.read(row));
  writer.end();
  // The first match is used, so what matches everything comes last, and of the same question twice the first answer counts.
  const seen = new Set<string>();
  const answers = writer.answers.filter((answer) => answer.lines.length > 0 && !seen.has(answer.to + answer.when) && seen.add(answer.to + answer.when));
  answers.sort((a, b) => Number(a.when === null) - Number(b.when === null));
  const parts = ['# Answers as they came, for a model with engine = "scripted".'];
  if (writer.lost) parts.push(`# ${writer.lost} long messages were not kept whole, and are left out.`);
  if (writer.hears.length) parts.push(`hears = [\n${writer.hears.join('\n')}\n]`);
  if (writer.speech.length) parts.push(`speech = [\n${writer.speech.join('\n')}\n]`);
  for (const { when, to, lines } of answers) {
    parts.push(['[[answers]]', ...(when === null ? [] : [`when = ${quoted(when)}`, `to = "${to}"`]), `lines = [\n${lines.map((line) => `  ${line},`).join('\n')}\n]`].join('\n'));
  }
  return { toml: parts.join('\n\n') + '\n', answers: answers.length };
}

import { createParser, type EventSourceMessage } from 'eventsource-parser';
import { eventLog, type Source } from './event_log.svelte';

/** The server said no, or could not be reached (status 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string | null = null,
    readonly param: string | null = null,
    readonly retryAfter_s: number | null = null,
    readonly requestId: string | null = null,
  ) {
    super(message);
    this.name = 'ApiError';
  }
}

export interface Ask {
  method?: 'GET' | 'POST' | 'DELETE' | 'PATCH' | 'PUT';
  /** Sent as JSON, or as it is if it is a form. */
  body?: object | FormData;
  signal?: AbortSignal;
  headers?: Record<string, string>;
  /** Whose event log gets what is sent and what comes; none if it isn't given. */
  source?: Source;
}

/** The page's own key, in memory alone: never in storage, an address or the DOM. `renew` gets another; true if it did. */
export const credentials: { key: string; renew: () => Promise<boolean> } = { key: '', renew: async () => false };

/** Whether a failure may have passed when the same is asked again: not for want of a right, nor where there is no such thing. */
export const canPass = (error: unknown): boolean => !(error instanceof ApiError && [401, 403, 404].includes(error.status));

/** Waits until the server has started; `session` knows how far it is. */
export const start: { over: () => Promise<void> } = { over: async () => undefined };

/** An address of this server, below whatever path a proxy added. */
export const serverUrl = (path: string): URL => new URL('.' + path, location.href.split('#')[0]);

/** The same for a WebSocket. */
export const socketUrl = (path: string): string => serverUrl(path).href.replace(/^http/, 'ws');

/** The answer to a request; an `ApiError` unless it is a 2xx. A key that has ended is renewed once. What a server that is starting sends back is asked again once it is ready. */
export async function request(path: string, ask: Ask = {}): Promise<Response> {
  let reply = await send(path, ask);
  while (reply.status === 503 && (await refusal(reply.clone())).code === 'model_loading') {
    await abortable(start.over(), ask.signal);
    reply = await send(path, ask);
  }
  if (reply.status === 401 && path !== '/console/keys' && (await credentials.renew())) reply = await send(path, ask);
  if (reply.ok) return reply;
  const error = await refusal(reply);
  if (ask.source) eventLog.note(ask.source, 'came', `${reply.status} ${error.code ?? reply.statusText}`, { status: reply.status, message: error.message, code: error.code, param: error.param });
  throw error;
}

function abortable(wait: Promise<void>, signal?: AbortSignal): Promise<void> {
  return new Promise((done, fail) => {
    const abort = (): void => fail(signal!.reason);
    if (signal?.aborted) abort();
    signal?.addEventListener('abort', abort);
    void wait.then(done, fail).finally(() => signal?.removeEventListener('abort', abort));
  });
}

async function send(path: string, { method, body, signal, headers, source }: Ask): Promise<Response> {
  const verb = method ?? (body ? 'POST' : 'GET');
  const isForm = body instanceof FormData;
  const sent = body === undefined || isForm ? body : JSON.stringify(body);
  if (source) eventLog.note(source, 'sent', `${verb} ${path.replace(/\?.*/s, '')}`, isForm ? {} : (body ?? {}), typeof sent === 'string' ? sent.length : 0);
  try {
    return await fetch(serverUrl(path), {
      method: verb,
      body: sent,
      signal,
      headers: {
        ...(credentials.key ? { authorization: `Bearer ${credentials.key}` } : {}),
        ...(sent !== undefined && !isForm ? { 'content-type': 'application/json' } : {}),
        ...headers,
      },
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, 'The server cannot be reached. Is it running?', 'unreachable');
  }
}

async function refusal(reply: Response): Promise<ApiError> {
  const body = (await reply.json().catch(() => null)) as { error?: { message?: string; code?: string; param?: string } } | null;
  const { message, code, param } = body?.error ?? {};
  const after = Number(reply.headers.get('retry-after'));
  return new ApiError(reply.status, message ?? `${reply.status} ${reply.statusText}`, code ?? null, param ?? null, after || null, reply.headers.get('x-request-id'));
}

/** The JSON of an answer. */
export async function json<T>(path: string, ask: Ask = {}): Promise<T> {
  const reply = await request(path, ask);
  return (reply.status === 204 ? undefined : await reply.json()) as T;
}

/** The rows of OpenAI's lists, page by page. */
export interface Page<T> {
  data: T[];
  has_more: boolean;
  last_id: string | null;
}

/** The server-sent events of an answer, as they come, until it ends. */
export async function* serverSentEvents(path: string, ask: Ask): AsyncGenerator<EventSourceMessage> {
  const reply = await request(path, { ...ask, headers: { accept: 'text/event-stream', ...ask.headers } });
  const ready: EventSourceMessage[] = [];
  const parser = createParser({ onEvent: (event) => ready.push(event) });
  const reader = reply.body!.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let part = await read(reader, ask.signal); !part.done; part = await read(reader, ask.signal)) {
      parser.feed(part.value);
      while (ready.length) yield ready.shift()!;
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

async function read(reader: ReadableStreamDefaultReader<string>, signal?: AbortSignal): Promise<ReadableStreamReadResult<string>> {
  try {
    return await reader.read();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, 'The connection to the server was lost.', 'connection_lost');
  }
}

/** Typed events of a stream that ends with `[DONE]`, each noted in the log. */
export async function* eventsOf<T extends { type: string }>(path: string, ask: Ask & { source: Source }): AsyncGenerator<T> {
  for await (const { data } of serverSentEvents(path, ask)) {
    if (data === '[DONE]') return;
    const event = JSON.parse(data) as T;
    eventLog.note(ask.source, 'came', event.type, event, data.length);
    yield event;
  }
}

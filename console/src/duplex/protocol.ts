/** The events of the MiniCPM-o protocol, with the fields that the page reads. */
export type Mode = 'chat' | 'audio' | 'video';
export const MODES: [Mode, string][] = [['chat', 'Chat'], ['audio', 'Audio'], ['video', 'Video']];

export const RATE_IN = 16_000;
export const RATE_OUT = 24_000;

export type Metrics = Record<string, unknown>;

export interface ServerEvent {
  type: string;
  seq?: number;
  session_id?: string | null;
  resume_token?: string;
  metrics?: Metrics;
  /** Of `response.output.delta`. */
  kind?: 'listen' | 'text' | 'audio';
  response_id?: string;
  input_id?: string;
  text?: string;
  audio?: string | null;
  end_of_turn?: boolean;
  interrupted?: boolean;
  usage?: { total_tokens?: number } | null;
  /** Of `session.queued` and `session.queue_update`. */
  position?: number;
  queue_length?: number;
  ticket_id?: string;
  estimated_wait_s?: number | null;
  /** Of `session.warning`. */
  remaining_s?: number;
  /** Of `session.closed` and `response.done`. */
  reason?: string;
  diagnostic?: { message?: string } | null;
  error?: { code?: string; message?: string; param?: string | null };
}

export interface ClientEvent {
  type: 'session.init' | 'input.append' | 'session.close';
  [field: string]: unknown;
}

/** Why a session is over, in words. */
export interface Ending {
  code: string;
  title: string;
  text: string;
  /** Whether something went wrong. */
  isBad: boolean;
}

const ENDINGS: Record<string, [title: string, text: string]> = {
  user_stop: ['The session is over', 'You ended it.'],
  client_closed: ['The session is over', 'This page closed it.'],
  timeout: ['The time is up', 'Sessions have a longest duration, so that everybody gets a turn.'],
  idle_timeout: ['Nothing came for too long', 'The server ended the session, because it got neither sound nor pictures.'],
  init_timeout: ['Your turn has passed', 'The page did not begin in time.'],
  backend_error: ['The worker was lost', 'The model that served you failed or was cut off.'],
  session_failed: ['The model did not start', 'Its engine failed to begin a session.'],
  shutdown: ['The server stops', 'It may be back in a moment.'],
  unauthorized: ['The key has ended', 'It was revoked, or it has expired. Sign in again.'],
  too_many_errors: ['Too many errors', 'The server refused too much of what the page sent.'],
  queue_full: ['The line is full', 'So many are waiting that no more can join.'],
  worker_busy: ['No worker for you', 'The workers for this mode have gone, or an operator took you out of the line.'],
  rate_limit_exceeded: ['The limit is reached', 'The key allows no more sessions for now.'],
  server_is_overloaded: ['Too many sessions', 'The server has as many sessions as it takes.'],
  model_not_found: ['No model does this', 'None of the models can listen and speak at the same time.'],
  unsupported_value: ['The model only chats', 'Choose another one, or the mode Chat.'],
  session_not_found: ['The session did not wait longer', 'The network was away for too long.'],
  unreachable: ['The server cannot be reached', 'Is it running? If it asks for a key, yours may have ended.'],
  connection_lost: ['The connection was lost', 'It broke off before the session could be resumed.'],
};
const FINE = ['user_stop', 'client_closed', 'timeout'];

/** What a reason of the server means; `said` is its own message, if it has one. */
export function endingOf(code: string, said = ''): Ending {
  const [title, text] = ENDINGS[code] ?? ['The session is over', ''];
  // What the server says of an error names the cause; what it says of an ordinary end repeats the reason.
  const words = FINE.includes(code) ? text : [text, said].filter((each, index, all) => each && all.indexOf(each) === index).join(' ');
  return { code, title, text: words || code, isBad: !FINE.includes(code) };
}

export const ordinal = (n: number): string => {
  const last = n % 100 > 10 && n % 100 < 14 ? 0 : n % 10;
  return `${n}${['th', 'st', 'nd', 'rd'][last] ?? 'th'}`;
};

/** Rows of `/updates`, and of the lists for operators; times in Unix seconds. */
export interface ServerRow {
  id: string;
  status: 'ready' | 'draining' | 'unavailable';
  version: string;
  started_at: number;
  processes: number;
  warm_up: string;
  requests: number;
  connections: number;
  sessions: number;
  background: number;
  /** Put away, or tried to: their list may have changed when this has. */
  recordings: number;
  queue_length: number;
  max_queue_size: number;
  serving: number;
  workers: Record<string, number>;
  answers: number;
  errors: number;
  refusals: number;
  first_token_p50_s: number | null;
  first_token_p99_s: number | null;
}

export interface ModelRow {
  id: string;
  name: string;
  engine: string;
  state: 'ready' | 'waiting' | 'degraded' | 'failing';
  answers: number;
  errors: number;
  first_token_p50_s: number | null;
  first_token_p99_s: number | null;
}

export interface WorkerRow {
  id: string;
  worker_id: string;
  model: string;
  address: string;
  status: 'idle' | 'busy' | 'draining' | 'quarantined' | 'offline';
  kinds: string[];
  slots: number | null;
  taken: number;
  total_requests: number;
  failures: number;
  joined_at: number;
  silent_s: number | null;
  version: string | null;
  abilities: Record<string, unknown>;
}

export interface TicketRow {
  id: string;
  ticket_id: string;
  status: 'queued' | 'serving';
  model: string;
  kind: string;
  tenant: string;
  key_id: string | null;
  enqueued_at: number;
  position: number | null;
  estimated_wait_s: number | null;
  worker_id: string | null;
  started_at: number | null;
}

export interface SessionRow {
  id: string;
  protocol: string;
  mode: string;
  model: string;
  tenant: string;
  key_id: string | null;
  started_at: number;
  ends_at: number | null;
  recorded: boolean;
}

export interface AnswerRow {
  id: string;
  model: string;
  status: string;
  background: boolean;
  tenant: string;
  key_id: string | null;
  created_at: number;
  ended_at: number | null;
  first_token_s: number | null;
  input_tokens: number | null;
  output_tokens: number | null;
}

export interface LogLine {
  event: string;
  level: string;
  timestamp: string;
  request_id?: string;
  message?: string;
  [field: string]: unknown;
}

export interface Recording {
  id: string;
  protocol: string;
  mode: string;
  model?: string;
  status: 'live' | 'kept' | 'interrupted';
  created_at: number;
  ended_at: number | null;
  duration_ms: number | null;
  reason: string | null;
  truncated: string | null;
  bytes: number;
  tenant: string;
  key_id: string | null;
  files?: { name: string; bytes: number }[];
}

export interface KeyRow {
  id: string;
  prefix: string;
  name: string;
  tenant: string;
  scopes: string[];
  state: 'live' | 'expired' | 'revoked';
  created_at: number;
  expires_at: number | null;
  revoked_at: number | null;
  last_used_at: number | null;
  requests_per_minute: number | null;
  tokens_per_minute: number | null;
  streams: number | null;
  record: string | null;
  profile: string | null;
  limits: Record<'requests' | 'tokens', { limit: number; remaining: number; reset_s: number } | null>;
}

export interface Setting {
  key: string;
  value: unknown;
  origin: string;
  default: unknown;
  secret: 'set' | 'unset' | null;
  restart: boolean;
}

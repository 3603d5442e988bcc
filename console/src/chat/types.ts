/** Items and events of the Responses API, with the fields that the chat reads. */
export interface Annotation {
  type: string;
  url?: string;
  title?: string;
  filename?: string;
  file_id?: string;
  container_id?: string;
  index?: number;
  start_index?: number;
  end_index?: number;
}

export interface Part {
  type: string;
  text?: string;
  refusal?: string;
  annotations?: Annotation[];
  image_url?: string;
  file_id?: string;
  filename?: string;
  file_data?: string;
}

export interface Item {
  id?: string;
  type: string;
  status?: string;
  role?: string;
  content?: Part[] | string;
  summary?: Part[];
  encrypted_content?: string;
  // calls
  name?: string;
  call_id?: string;
  arguments?: string;
  input?: string;
  output?: string | Part[] | null;
  error?: unknown;
  server_label?: string;
  tools?: { name: string; description?: string }[];
  approval_request_id?: string | null;
  approve?: boolean;
  queries?: string[];
  results?: { filename?: string; score?: number; text?: string }[] | null;
  action?: { type: string; query?: string; queries?: string[]; url?: string; pattern?: string; sources?: { url: string }[] };
  code?: string | null;
  container_id?: string;
  outputs?: { type: string; logs?: string; url?: string }[] | null;
  result?: string | null;
}

export interface Usage {
  input_tokens: number;
  output_tokens: number;
  total_tokens: number;
  output_tokens_details?: { reasoning_tokens?: number };
}

export type Status = 'queued' | 'in_progress' | 'completed' | 'incomplete' | 'failed' | 'cancelled';

export interface ResponseObject {
  id: string;
  status: Status;
  model: string;
  created_at: number;
  completed_at?: number | null;
  background?: boolean | null;
  previous_response_id?: string | null;
  error?: { code?: string; message?: string } | null;
  incomplete_details?: { reason?: string } | null;
  output: Item[];
  usage?: Usage | null;
  metadata?: Record<string, string> | null;
  store?: boolean;
}

export interface Event {
  type: string;
  sequence_number?: number;
  response?: ResponseObject;
  output_index?: number;
  content_index?: number;
  summary_index?: number;
  annotation_index?: number;
  item?: Item;
  part?: Part;
  annotation?: Annotation;
  delta?: string;
  text?: string;
  arguments?: string;
  code?: string;
  input?: string;
  refusal?: string;
  partial_image_b64?: string;
  message?: string;
  param?: string | null;
  error?: { message?: string; code?: string };
}

/** What the server lists of a response. */
export interface ListedResponse {
  id: string;
  created_at: number;
  completed_at: number | null;
  model: string;
  status: Status;
  background: boolean;
  previous_response_id: string | null;
  root_id: string;
  usage: Usage | null;
}

/** The same with all that was said. */
export interface WholeResponse extends ListedResponse {
  input: Item[];
  output: Item[];
  error: ResponseObject['error'];
  incomplete_details: ResponseObject['incomplete_details'];
}

/** A chat, as the server lists it: all responses that continue one, with their branches. */
export interface Root {
  id: string;
  created_at: number | null;
  updated_at: number;
  title: string | null;
  metadata: Record<string, string>;
  model: string;
  status: Status;
  responses: number;
  last_response_id: string;
}

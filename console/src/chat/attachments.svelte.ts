import { json } from '../lib/api';
import { bytes } from '../lib/format';
import type { Part } from './types';

export interface Attachment {
  key: number;
  name: string;
  size: number;
  kind: 'image' | 'text' | 'file';
  /** A picture as it is shown; released when the attachment goes. */
  preview: string;
  content: Blob;
}

/** A longer paste becomes an attachment: filling a field with it holds the page for seconds. */
export const MAX_PASTE = 4000;
const MAX_TEXT_BYTES = 1e6;
/** What is larger is uploaded as a file of its own, so that the request stays small. */
const MAX_INLINE_BYTES = 4e6;
const TEXT = /\.(?:txt|md|csv|tsv|json|jsonl|ya?ml|toml|ini|log|xml|html?|css|js|mjs|ts|tsx|jsx|svelte|vue|py|rs|go|c|h|cc|cpp|hpp|java|kt|rb|php|sh|sql|tex|diff|patch)$/i;
/** How a text file begins in the question, so that it is recognised when the chat is read again. */
const HEAD = 'File: ';

let last = 0;

export class Attachments {
  all = $state<Attachment[]>([]);

  add(files: Iterable<File>): void {
    for (const file of files) {
      const isText = (file.type.startsWith('text/') || TEXT.test(file.name)) && file.size <= MAX_TEXT_BYTES;
      const kind = /^image\/(?:png|jpeg|gif|webp)$/.test(file.type) ? 'image' : isText ? 'text' : 'file';
      this.all.push({ key: ++last, name: file.name || `pasted.${file.type.split('/')[1] ?? 'bin'}`, size: file.size, kind, preview: kind === 'image' ? URL.createObjectURL(file) : '', content: file });
    }
  }

  remove(key: number): void {
    const gone = this.all.find((each) => each.key === key);
    if (gone?.preview) URL.revokeObjectURL(gone.preview);
    this.all = this.all.filter((each) => each.key !== key);
  }

  /** Their parts of a message. They stay until `clear`, so that nothing is lost if the server refuses them. */
  async parts(): Promise<Part[]> {
    return Promise.all(this.all.map(part));
  }

  clear(): void {
    this.all.forEach((each) => each.preview && URL.revokeObjectURL(each.preview));
    this.all = [];
  }
}

async function part({ kind, name, content }: Attachment): Promise<Part> {
  if (kind === 'text') return { type: 'input_text', text: `${HEAD}${name}\n\n${await content.text()}` };
  if (kind === 'image') return { type: 'input_image', image_url: await dataUrl(content) };
  if (content.size <= MAX_INLINE_BYTES) return { type: 'input_file', filename: name, file_data: await dataUrl(content) };
  const form = new FormData();
  form.append('purpose', 'user_data');
  form.append('file', content, name);
  const { id } = await json<{ id: string }>('/v1/files', { method: 'POST', body: form });
  return { type: 'input_file', file_id: id };
}

function dataUrl(content: Blob): Promise<string> {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result as string);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(content);
  });
}

/** The name of a text file that was sent as text, and its content. */
export function textFile(text: string): { name: string; text: string } | null {
  const end = text.indexOf('\n\n');
  return text.startsWith(HEAD) && end > 0 ? { name: text.slice(HEAD.length, end), text: text.slice(end + 2) } : null;
}

export const described = ({ name, size }: Attachment): string => `${name} · ${bytes(size)}`;

/** Markdown that grows, as DOM: of its blocks only those that changed are made anew, and each passes DOMPurify as a fragment. */
import DOMPurify from 'dompurify';
import { Marked, type Token, type TokenizerAndRendererExtension, type Tokens } from 'marked';
import { copy } from '../toasts.svelte';

/** In a text, the place of citation number n is `\uE000n\uE001`: characters that no model writes. */
export const citationMark = (n: number): string => `\uE000${n}\uE001`;
const CITATION = /\uE000(\d+)\uE001/g;

const escape = (text: string): string => text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;').replace(/"/g, '&quot;');

/** A formula stays text until it is complete; Markdown would read its backslashes and underscores. */
function formula(name: string, level: 'block' | 'inline', start: RegExp, pattern: RegExp, display: boolean): TokenizerAndRendererExtension {
  return {
    name,
    level,
    start: (source) => source.search(start),
    tokenizer(source) {
      const hit = pattern.exec(source);
      return hit ? { type: name, raw: hit[0], text: hit[1]!.trim() } : undefined;
    },
    renderer: (token) => `<span class="math" data-display="${display ? 1 : 0}">${escape(String(token.text))}</span>`,
  };
}

const marked = new Marked({
  gfm: true,
  breaks: false,
  extensions: [
    formula('dollarsBlock', 'block', /\$\$/, /^\$\$([^$]+?)\$\$(?:\n|$)/, true),
    formula('bracketsBlock', 'block', /\\\[/, /^\\\[([\s\S]+?)\\\](?:\n|$)/, true),
    formula('dollars', 'inline', /\$\$/, /^\$\$([^$]+?)\$\$/, true),
    formula('brackets', 'inline', /\\\[/, /^\\\[([\s\S]+?)\\\]/, true),
    formula('parentheses', 'inline', /\\\(/, /^\\\(([\s\S]+?)\\\)/, false),
    // "$5 and $6" is money: no space inside, and no digit after.
    formula('dollar', 'inline', /\$(?!\s)/, /^\$(?![\s$])((?:\\.|[^$\n\\])*?[^\s$\\])\$(?!\d)/, false),
  ],
  renderer: {
    html: ({ text }) => escape(text), // a model's HTML is shown, not run
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`, // nothing that an answer names is loaded
    checkbox: ({ checked }) => (checked ? '☑ ' : '☐ '),
  },
});

const SAFE = {
  RETURN_DOM_FRAGMENT: true,
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOWED_TAGS: ['a', 'b', 'blockquote', 'br', 'code', 'del', 'em', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'hr', 'i', 'li', 'ol', 'p', 'pre', 's', 'span', 'strong', 'sub', 'sup', 'table', 'tbody', 'td', 'th', 'thead', 'tr', 'ul'],
  ALLOWED_ATTR: ['href', 'title', 'class', 'start', 'align', 'data-display'],
} as const;

export class Blocks {
  #raws: string[] = [];
  /** What was done with each block beyond its words: colours and formulas wait until it is complete. */
  #finished: boolean[] = [];

  constructor(
    private readonly into: HTMLElement,
    private readonly cite: (n: number) => HTMLElement | null = () => null,
  ) {}

  show(text: string, isWhole: boolean): void {
    const tokens = marked.lexer(text).filter((token) => token.type !== 'space');
    const raws = tokens.map((token) => token.raw);
    let same = 0;
    while (same < raws.length && raws[same] === this.#raws[same]) same++;
    while (this.into.childNodes.length > same) this.into.lastChild!.remove();
    this.#finished.length = Math.min(this.#finished.length, same);
    for (let i = same; i < tokens.length; i++) this.into.append(this.#block(tokens[i]!));
    this.#raws = raws;
    const last = isWhole ? raws.length : raws.length - 1;
    for (let i = 0; i < last; i++) {
      if (this.#finished[i]) continue;
      this.#finished[i] = true;
      void finish(this.into.childNodes[i] as HTMLElement);
    }
  }

  #block(token: Token): HTMLElement {
    const block = document.createElement('div');
    block.dir = 'auto';
    block.append(DOMPurify.sanitize(marked.parser([token as Tokens.Generic]), { ...SAFE, ALLOWED_TAGS: [...SAFE.ALLOWED_TAGS], ALLOWED_ATTR: [...SAFE.ALLOWED_ATTR] }));
    for (const link of block.querySelectorAll('a[href]')) {
      link.setAttribute('rel', 'noreferrer noopener');
      link.setAttribute('target', '_blank');
    }
    // Code and formulas run from left to right, and say nothing about the words around them.
    for (const each of block.querySelectorAll<HTMLElement>('code, pre, .math')) each.dir = 'ltr';
    block.querySelectorAll('table').forEach(scrollable);
    block.querySelectorAll<HTMLElement>('pre').forEach(framed);
    this.#placeCitations(block);
    return block;
  }

  #placeCitations(block: HTMLElement): void {
    const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    const found: Text[] = [];
    while (walker.nextNode()) if ((walker.currentNode as Text).data.includes('\uE000')) found.push(walker.currentNode as Text);
    for (const node of found) {
      const parts = node.data.split(CITATION); // text, number, text, number, text
      node.replaceWith(...parts.flatMap((part, at) => (at % 2 ? (this.cite(Number(part)) ?? []) : part)));
    }
  }
}

/** What is wider than the page scrolls by itself, and is reached by keys. */
function scrollable(table: Element): void {
  const frame = document.createElement('div');
  frame.className = 'wide-table';
  frame.tabIndex = 0;
  frame.setAttribute('role', 'region');
  frame.setAttribute('aria-label', 'Table');
  table.replaceWith(frame);
  frame.append(table);
}

function framed(pre: HTMLElement): void {
  const language = /language-([\w+#-]+)/.exec(pre.firstElementChild?.className ?? '')?.[1] ?? '';
  const frame = document.createElement('div');
  frame.className = 'code';
  frame.dir = 'ltr';
  const header = document.createElement('header');
  const space = document.createElement('span');
  space.className = 'spacer';
  const button = document.createElement('button');
  button.textContent = 'Copy';
  button.setAttribute('aria-label', `Copy the code${language ? ` in ${language}` : ''}`);
  button.onclick = () => void copy(pre.textContent ?? '');
  header.append(language || 'code', space, button);
  pre.replaceWith(frame);
  pre.tabIndex = 0;
  frame.append(header, pre);
}

async function finish(block: HTMLElement): Promise<void> {
  const codes = block.querySelectorAll<HTMLElement>('pre > code[class*=language-]');
  if (codes.length) {
    const { paint } = await import('./highlight');
    codes.forEach((code) => paint(code, /language-([\w+#-]+)/.exec(code.className)![1]!));
  }
  const formulas = block.querySelectorAll<HTMLElement>('.math');
  if (formulas.length) {
    const { typeset } = await import('./maths');
    formulas.forEach(typeset);
  }
}

/** Colours for code. A chunk of its own, fetched when there is code. */
import DOMPurify from 'dompurify';
import hljs from 'highlight.js/lib/core';
import bash from 'highlight.js/lib/languages/bash';
import cpp from 'highlight.js/lib/languages/cpp';
import css from 'highlight.js/lib/languages/css';
import diff from 'highlight.js/lib/languages/diff';
import go from 'highlight.js/lib/languages/go';
import javascript from 'highlight.js/lib/languages/javascript';
import json from 'highlight.js/lib/languages/json';
import python from 'highlight.js/lib/languages/python';
import rust from 'highlight.js/lib/languages/rust';
import sql from 'highlight.js/lib/languages/sql';
import typescript from 'highlight.js/lib/languages/typescript';
import xml from 'highlight.js/lib/languages/xml';
import yaml from 'highlight.js/lib/languages/yaml';

const MAX_LENGTH = 50_000; // longer code would hold the page while it is coloured
const grammars = { bash, cpp, css, diff, go, javascript, json, python, rust, sql, typescript, xml, yaml };
Object.entries(grammars).forEach(([name, grammar]) => hljs.registerLanguage(name, grammar));

/** Colour what a `code` element says. A language that is not known stays plain. */
export function paint(code: HTMLElement, language: string): void {
  const text = code.textContent ?? '';
  if (!hljs.getLanguage(language) || text.length > MAX_LENGTH) return;
  const html = hljs.highlight(text, { language, ignoreIllegals: true }).value;
  code.replaceChildren(DOMPurify.sanitize(html, { RETURN_DOM_FRAGMENT: true, ALLOWED_TAGS: ['span'], ALLOWED_ATTR: ['class'] }));
}

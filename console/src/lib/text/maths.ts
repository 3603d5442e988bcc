/** Formulas. A chunk of its own, fetched when there is one. */
import katex from 'katex';
import 'katex/dist/katex.min.css';

/** `render` makes nodes and sets styles by calls, which a strict policy allows; `renderToString` writes style attributes, which it refuses. */
export function typeset(formula: HTMLElement): void {
  const displayMode = formula.dataset.display === '1';
  katex.render(formula.textContent ?? '', formula, { throwOnError: false, trust: false, displayMode, output: 'htmlAndMathml', maxExpand: 500 });
}

import { tick } from 'svelte';

const NEAR = 60; // pixels from the end within which new words are followed

/** The end of what scrolls: it stays in view as more comes, unless the person has scrolled away. */
export class End {
  isNear = $state(true);
  #scroller: () => HTMLElement | undefined;
  #lastTop = 0;

  constructor(scroller: () => HTMLElement | undefined) {
    this.#scroller = scroller;
  }

  /** Whether the end is in view: a person may have scrolled up already, of which the browser tells later. */
  get isFollowed(): boolean {
    return this.isNear && (this.#scroller()?.scrollTop ?? 0) >= this.#lastTop;
  }

  /** Bring it into view. */
  readonly show = (): void => {
    void tick().then(() => {
      const scroller = this.#scroller();
      scroller?.scrollTo(0, scroller.scrollHeight);
      this.#lastTop = scroller?.scrollTop ?? 0;
    });
  };

  /** For `onscroll`. */
  readonly scrolled = (): void => {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller()!;
    this.#lastTop = scrollTop;
    this.isNear = scrollHeight - scrollTop - clientHeight < NEAR;
  };

  /** Attach it to what grows. */
  readonly follow = (content: HTMLElement): (() => void) => {
    const watch = new ResizeObserver(() => { if (this.isFollowed) this.show(); });
    watch.observe(content);
    return () => watch.disconnect();
  };
}

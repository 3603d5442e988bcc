import { recall, remember } from '../lib/storage';

/** What of the shell is open. */
class Panels {
  #drawer = $state(recall('panels', {}).drawer ?? false);
  /** The sidebar on phones, where it lies above the page. */
  sidebar = $state(false);
  keys = $state(false);
  signIn = $state(false);

  get drawer(): boolean {
    return this.#drawer;
  }

  set drawer(open: boolean) {
    this.#drawer = open;
    remember('panels', { ...recall('panels', {}), drawer: open });
  }
}

export const panels = new Panels();

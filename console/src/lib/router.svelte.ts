interface Route {
  /** The tab, such as `chat`. */
  tab: string;
  /** What follows it: `#/chat/resp_1` has `['resp_1']`. */
  rest: string[];
}

const read = (): Route => {
  const [tab = '', ...rest] = location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
  return { tab, rest };
};

/** Where the page is. The hash says it, so a path that a proxy adds and a reload need no help of the server. */
export const route = $state<Route>(read());

addEventListener('hashchange', () => Object.assign(route, read()));

export const address = (tab: string, ...rest: string[]): string => '#/' + [tab, ...rest].map(encodeURIComponent).join('/');

/** Go there; `replace` leaves no step to go back to. */
export function go(tab: string, rest: string[] = [], replace = false): void {
  if (replace) history.replaceState(null, '', address(tab, ...rest));
  else location.hash = address(tab, ...rest);
  Object.assign(route, read()); // the event comes later
}

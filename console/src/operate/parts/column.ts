/** A column of a `DataTable`. */
export interface Column<T> {
  name: string;
  /** What it is sorted by; null where there is none. */
  value: (row: T) => string | number | null;
  /** What is shown; by default the value. */
  text?: (row: T) => string;
  right?: boolean;
  mono?: boolean;
  /** A dot before it: '' for good, `warn`, `bad`, `off`. */
  dot?: (row: T) => string;
  /** A bar before it, 0 to 1. */
  share?: (row: T) => number;
}

// Says which cell of a matrix is chosen, beside the matrix: a map of 2,048 tokens takes megabytes and need not be sent
// again because another cell of it was chosen. Draws nothing.
//
// `data`: {name, cell}: the matrix whose meta.mark is that name, and [query, key] or null. What was said last is kept for
// a matrix that is drawn later.

export default function headscope({ data }) {
  (window.headscopeMarks ??= new Map()).set(data.name, data.cell);
  window.dispatchEvent(new CustomEvent("headscope-mark", { detail: data }));
}

// The columns whose hits are judged and measured.

import { html } from "../vendor/preact.js";
import { PRESETS, formatColumns, nameOf, parseColumns } from "../parts/columns.js";
import { setParams } from "../route.js";

/** Returns the columns of an address; without any: all modes that the index has. */
export function judgedColumns(text, index) {
  const encodes = index.encoder || Object.values(index.namedVectors ?? {}).some((vector) => vector.encoder);
  const modes = [encodes && index.lexical && "hybrid", encodes && "dense", index.lexical && "lexical"].filter(Boolean);
  return parseColumns(text || modes.join("~"));
}

/** The columns, each with a button that takes it away, and a menu for a further one. */
export function ColumnChips({ columns }) {
  const set = (changed) => setParams({ c: formatColumns(changed) || "auto" });
  return html`<div class="chips" role="group" aria-label="Columns">
    ${columns.map((column, i) => html`<button class="chip" title="take this column away" disabled=${columns.length === 1} onClick=${() => set(columns.filter((_, n) => n !== i))}>
      ${nameOf(column)} ${columns.length > 1 && html`<span aria-hidden="true">✕</span>`}</button>`)}
    ${columns.length < 4 && html`<select aria-label="Add a column" value="" onChange=${(e) => { if (e.target.value) set([...columns, ...parseColumns(e.target.value)]); e.target.value = ""; }}>
      <option value="">+ column</option>${PRESETS.map((preset) => html`<option value=${preset}>${nameOf(parseColumns(preset)[0])}</option>`)}</select>`}
  </div>`;
}

// What is in a selection: values of attributes, titles, and what can be done with it.

import { html, useMemo } from "../../vendor/preact.js";
import { call } from "../../calls.js";
import { Problem, useLoaded } from "../../parts/load.js";
import { attributesOf, count, shown } from "../../parts/values.js";
import { Link, address } from "../../route.js";

const TITLES = 100, VALUES = 6;
/** Ids that a filter in an address can have. */
const MAX_FILTER = 200;

const titles = new Map();

/** Returns `{title, text}` of datapoints by id, remembered; throws CallError. */
export async function titlesOf(index, ids, signal) {
  const missing = ids.filter((id) => !titles.has(`${index}/${id}`));
  if (missing.length) {
    const { datapoints } = await call("SearchService/Get", { index, ids: missing, returnFields: ["title", "text"] }, { signal });
    if (titles.size > 20000) titles.clear();
    for (const point of datapoints) titles.set(`${index}/${point.id}`, { title: point.title || point.id, text: point.text ?? "" });
  }
  return ids.map((id) => titles.get(`${index}/${id}`) ?? { title: id, text: "" });
}

/** Values of the attributes in the selection, the most frequent first. */
function facetsOf(map, rows) {
  return Object.entries(map.columns).map(([name, { values, codes }]) => {
    const counts = new Map();
    for (const row of rows) if (codes[row]) for (const value of [values[codes[row] - 1]].flat()) counts.set(value, (counts.get(value) ?? 0) + 1);
    return { name, distinct: counts.size, top: [...counts].sort((a, b) => b[1] - a[1]).slice(0, VALUES) };
  }).filter(({ distinct }) => distinct > 0);
}

/** The panel. `rows`: rows of the map. */
export function Selection({ index, map, rows, picked, onPick, onValue, onIds, onClear }) {
  const facets = useMemo(() => facetsOf(map, rows), [map, rows]);
  const ids = useMemo(() => Array.from(rows.slice(0, TITLES), (row) => map.ids[row]), [map, rows]);
  const { value, error } = useLoaded((signal) => titlesOf(index, ids, signal), [index, ids]);
  const all = () => Array.from(rows, (row) => map.ids[row]);
  return html`<section aria-label="Selection"><header class="line"><h2 class="grow" aria-live="polite">${count(rows.length)} selected</h2><button class="quiet" onClick=${onClear}>clear</button></header>
    ${rows.length > 0 && html`<p class="line">${rows.length <= MAX_FILTER
      ? html`<button onClick=${() => onIds(all())}>Filter to these</button> <${Link} to=${address("search", index, { where: JSON.stringify({ id: { $in: all() } }) })}>search in them<//>
          <${Link} to=${address("data", index, { where: JSON.stringify({ id: { $in: all() } }) })}>as rows<//>`
      : html`<span class="dim small">More than ${MAX_FILTER}: filter by one of their values.</span>`}</p>`}
    ${facets.map(({ name, distinct, top }) => html`<details open><summary>${name} <span class="dim">${count(distinct)}</span></summary><ul class="facets">
      ${top.map(([each, number]) => html`<li><button class="value" title="only ${name} = ${shown(each)}" onClick=${() => onValue(name, each)}><bdi>${shown(each)}</bdi> <span class="dim">${count(number)}, ${Math.round((100 * number) / rows.length)} %</span></button></li>`)}</ul></details>`)}
    <${Problem} error=${error} />
    <ol class="titles">${ids.map((id, i) => html`<li key=${id}><button class="value ${picked === id ? "chosen" : ""}" onClick=${() => onPick(id)}><bdi>${value?.[i]?.title ?? id}</bdi></button></li>`)}</ol>
    ${rows.length > ids.length && html`<p class="dim small">the first ${count(ids.length)}</p>`}</section>`;
}

/** One datapoint, read. */
export function Picked({ index, id, onClose }) {
  const { value: point, error } = useLoaded(async (signal) => (await call("SearchService/Get", { index, ids: [id] }, { signal })).datapoints[0], [index, id]);
  return html`<section class="picked" aria-label="Datapoint"><header class="line"><h2 class="grow"><bdi>${point?.title || id}</bdi></h2><button class="quiet" aria-label="Close" onClick=${onClose}>✕</button></header>
    <${Problem} error=${error} />
    ${point && html`<p class="text" dir="auto">${point.text}</p><p class="small">${Object.entries(attributesOf(point)).map(([name, value]) => html`<span><span class="dim">${name}</span> <bdi>${shown(value)}</bdi> </span>`)}</p>`}
    <p class="line"><${Link} to=${address("search", index, { like: id })}>more like this<//> <${Link} to=${address("data", index, { row: id })}>open in Data<//></p></section>`;
}

// One hit, as all pages show it.

import { html } from "../vendor/preact.js";
import { Snippet } from "./snippet.js";
import { attributesOf, clock, number, shown } from "./values.js";

const MAX_ATTRIBUTES = 8, MAX_VALUES = 6;

/** Returns the address that the spec's template `link` gives a datapoint; null: there is none, or it is not https. */
export function linkOf(template, datapoint) {
  if (!template) return null;
  const attributes = attributesOf(datapoint);
  const fields = Object.assign(attributes, {
    id: datapoint.id, document_id: datapoint.documentId || datapoint.id, seconds: Math.floor(datapoint.timeStartS ?? 0),
  });
  let complete = true;
  const address = template.replace(/\{(\w+)\}/g, (_, name) => {
    if (fields[name] == null) complete = false;
    // Whole addresses stay as they are, at the beginning.
    return template.startsWith(`{${name}}`) ? String(fields[name]) : encodeURIComponent(String(fields[name]).toWellFormed());
  });
  return complete && URL.canParse(address) && new URL(address).protocol === "https:" ? address : null;
}

/** How a hit stands against the first column, in signs and in words. */
export function Move({ from, to }) {
  if (from === undefined) return html`<span class="move new" title="not among the hits of the first column">new</span>`;
  if (from === to) return null;
  const [sign, word] = from > to ? ["▲", "up"] : ["▼", "down"];
  return html`<span class="move ${word}" title="${word} ${Math.abs(from - to)} against the first column"><span aria-hidden="true">${sign}</span>${Math.abs(from - to)}</span>`;
}

/**
 * A hit. `actions`: buttons; `onValue(name, value)`: a value of an attribute was clicked; `open`: shows all of it.
 */
export function Hit({ hit, rank, move, actions, onValue, template, open, chosen }) {
  const { datapoint } = hit;
  const attributes = Object.entries(attributesOf(datapoint)).filter(([, value]) => value != null && value !== "")
    .sort(([one], [two]) => (one < two ? -1 : 1));
  const link = linkOf(template, datapoint);
  const plays = datapoint.timeStartS !== undefined && `plays at ${clock(datapoint.timeStartS)}`;
  return html`<li class="hit ${chosen ? "chosen" : ""}" data-id=${datapoint.id}>
    <div class="line"><span class="rank">${rank}</span>
      <bdi class="title">${datapoint.title || datapoint.id}</bdi>
      ${plays && (link ? html`<a href=${link} target="_blank" rel="noreferrer noopener">${plays}</a>` : html`<span class="dim">${plays}</span>`)}
      ${!plays && link && html`<a href=${link} target="_blank" rel="noreferrer noopener">open ↗</a>`}
      ${move}
      <span class="score" title=${hit.relevance === undefined ? "score" : "score; relevance"}>${number(hit.rerankScore ?? hit.score)}${hit.relevance !== undefined && html` · relevance ${Math.round(hit.relevance * 100)} %`}</span>
    </div>
    <div dir="auto"><${Snippet} text=${datapoint.text} snippet=${hit.snippet} whole=${open} /></div>
    ${open && datapoint.payloadJson && html`<pre>${datapoint.payloadJson}</pre>`}
    <div class="line small">
      ${attributes.slice(0, open ? undefined : MAX_ATTRIBUTES).map(([name, value]) => html`<span class="pair"><span class="dim">${name}</span>
        ${[value].flat().slice(0, open ? undefined : MAX_VALUES).map((each) => html`<button class="value" title="only ${name} = ${shown(each)}" onClick=${() => onValue?.(name, each)}><bdi>${shown(each)}</bdi></button>`)}</span>`)}
      ${open && html`<code class="dim">${datapoint.id}</code>`}
      <span class="actions">${actions}</span>
    </div>
  </li>`;
}

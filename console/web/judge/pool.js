// The hits of one question: those of all columns together, in an order that does not tell which column found them.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { call } from "../calls.js";
import { useKeys } from "../keys.js";
import { indexOf, messageOf } from "../parts/columns.js";
import { linkOf } from "../parts/hit.js";
import { Problem, useLoaded } from "../parts/load.js";
import { Snippet } from "../parts/snippet.js";
import { attributesOf, bare, clock, shown } from "../parts/values.js";
import { LEVELS, Levels, Names } from "./marking.js";

const MAX_ATTRIBUTES = 6;

/** Returns a number that two texts decide and nobody guesses (FNV-1a). */
function scatter(text) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return Math.imul(hash ^ (hash >>> 15), 0x2c1b3c6d) >>> 0;
}

const documentOf = ({ datapoint }) => datapoint.documentId || datapoint.id;

/** Returns the hits of several searches, each document once, shuffled in a way that stays. */
export function pooled(question, answers) {
  const hits = new Map();
  for (const { hits: found } of answers) for (const hit of found) if (!hits.has(documentOf(hit))) hits.set(documentOf(hit), hit);
  return [...hits.values()].sort((a, b) => scatter(`${question}\n${documentOf(a)}`) - scatter(`${question}\n${documentOf(b)}`));
}

/**
 * The hits of a question. `marks`: by document; `blind`: marks of others are hidden, and count for nothing; `start`: the
 * document to begin with; `onMark(document, level)`; `onMove(1 or -1)`: another question; `onUndo()`.
 */
export function Pool({ index, question, columns, depth, marks, me, blind, start, onMark, onMove, onUndo }) {
  const depends = [index.name, question.id, depth, JSON.stringify(columns)];
  const { value, error, busy } = useLoaded(async (signal) => {
    const answers = await Promise.all(columns.map((column) => call("SearchService/Search", {
      index: indexOf(column, index.name), query: { text: question.text },
      options: { ...messageOf(column, { k: depth, group: "document_id" }), highlight: { byEncoder: false } },
    }, { signal })));
    return { question: question.id, hits: pooled(question.id, answers) };
  }, depends);
  const hits = value?.question === question.id ? value.hits : null;
  const marksOf = (document) => bare(marks)[document];
  const levelOf = (document) => (blind ? marksOf(document)?.marks.find(({ by }) => by === me)?.level : marksOf(document)?.level) ?? null;
  const [name, setName] = useState(null);
  const [open, setOpen] = useState("");
  const list = useRef();
  const isReady = Boolean(hits && marks);
  // Where judging goes on: at the first hit without a mark.
  useEffect(() => {
    if (!isReady) return;
    const first = hits.find((hit) => documentOf(hit) === start?.document) ?? hits.find((hit) => levelOf(documentOf(hit)) === null) ?? hits[0];
    setName(first ? documentOf(first) : null);
  }, [question.id, isReady, start, blind]);
  const chosen = isReady ? Math.max(hits.findIndex((hit) => documentOf(hit) === name), 0) : 0;
  useEffect(() => {
    list.current?.querySelector(".chosen")?.scrollIntoView({ block: "nearest" });
  }, [chosen, question.id, isReady]);
  const left = useMemo(() => (isReady ? hits.filter((hit) => levelOf(documentOf(hit)) === null).length : 0), [hits, marks, blind, me]);
  if (error) return html`<${Problem} error=${error} />`;

  const choose = (hit) => hit && setName(documentOf(hit));
  const step = (by) => isReady && choose(hits[chosen + by]);
  const forward = () => {
    if (!isReady) return;
    const next = hits.slice(chosen + 1).find((hit) => levelOf(documentOf(hit)) === null);
    if (next) choose(next);
    else onMove(1);
  };
  const judge = (level) => {
    if (!isReady || !hits[chosen]) return;
    onMark(documentOf(hits[chosen]), level);
    forward();
  };
  const toggle = (hit) => setOpen(open === documentOf(hit) ? "" : documentOf(hit));
  return html`<div ref=${list}><${PoolKeys} judge=${judge} step=${step} forward=${forward} onMove=${onMove} onUndo=${onUndo}
      onOpen=${() => isReady && hits[chosen] && toggle(hits[chosen])} />
    <p class="small dim" role="status">${!isReady ? "Asking …" : hits.length === 0 ? "No hits." : left === 0 ? `All ${hits.length} hits have a mark${blind ? " of yours" : ""}; n is the next question.` : `${left} of ${hits.length} hits have no mark${blind ? " of yours" : ""}${busy ? " …" : ""}`}</p>
    <ol class="hits">${isReady && hits.map((hit, i) => html`<${Candidate} key=${documentOf(hit)} hit=${hit} pair=${marks[documentOf(hit)]} level=${levelOf(documentOf(hit))} blind=${blind}
      chosen=${i === chosen} open=${open === documentOf(hit)} template=${index.spec.search?.link} onChoose=${() => choose(hit)}
      onOpen=${() => toggle(hit)} onMark=${(level) => onMark(documentOf(hit), level === levelOf(documentOf(hit)) ? null : level)} />`)}</ol></div>`;
}

function PoolKeys({ judge, step, forward, onMove, onUndo, onOpen }) {
  useKeys({
    ...Object.fromEntries(LEVELS.map((text, i) => [String(i), [text, () => judge(i)]])),
    s: ["skip the hit", forward],
    u: ["take the last mark back", onUndo],
    j: ["next hit", () => step(1)],
    k: ["hit before", () => step(-1)],
    n: ["next question", () => onMove(1)],
    p: ["question before", () => onMove(-1)],
    Enter: ["all of the text, and less of it", onOpen],
  });
  return null;
}

function Candidate({ hit, pair, level, blind, chosen, open, template, onChoose, onOpen, onMark }) {
  const { datapoint } = hit;
  const attributes = Object.entries(attributesOf(datapoint)).filter(([, value]) => value != null && value !== "");
  const link = linkOf(template, datapoint);
  return html`<li class="hit ${chosen ? "chosen" : ""}" aria-current=${chosen ? "true" : undefined} data-id=${documentOf(hit)} onClick=${onChoose}>
    <div class="line"><bdi class="title">${datapoint.title || documentOf(hit)}</bdi>
      ${datapoint.timeStartS !== undefined && html`<span class="dim small">plays at ${clock(datapoint.timeStartS)}</span>`}
      ${link && html`<a class="small" href=${link} target="_blank" rel="noreferrer noopener">open ↗</a>`}
      <span class="grow"></span><${Levels} level=${level} label=${datapoint.title || documentOf(hit)} onMark=${onMark} /></div>
    <div dir="auto"><${Snippet} text=${datapoint.text} snippet=${hit.snippet} whole=${open || chosen} /></div>
    <div class="line small">${attributes.slice(0, open ? undefined : MAX_ATTRIBUTES).map(([name, value]) => html`<span><span class="dim">${name}</span> <bdi>${shown(value)}</bdi></span>`)}
      ${open && html`<code class="dim">${documentOf(hit)}</code>`}
      <span class="actions">${!blind && html`<${Names} pair=${pair} />`} <button class="quiet" aria-expanded=${open} onClick=${onOpen}>${open ? "less" : "all"}</button></span></div>
  </li>`;
}

// How well each column answers the set: means with intervals, the questions that it answers worst, and what people differ on.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { call, isOvertaken, post, returns } from "../calls.js";
import { formatColumns, indexOf, messageOf, nameOf } from "../parts/columns.js";
import { Problem, useLoaded } from "../parts/load.js";
import { count } from "../parts/values.js";
import { Link, address } from "../route.js";

const DEPTH = 100, BATCH = 50, REST_MS = 700, FEW = 50;

/** The documents that a column finds, by question; asked once for each version of the index. */
const rankings = new Map();

/** Asks a column for the questions that it has not answered yet; throws CallError. */
async function rank(index, column, questions, signal, progress) {
  const options = { ...messageOf(column, { k: DEPTH, group: "document_id" }), returnFields: ["title"] };
  const key = JSON.stringify([index, options]);
  let known = rankings.get(key) ?? { version: null, hits: new Map() };
  for (;;) {
    const missing = questions.filter(({ id, text }) => known.hits.get(id)?.text !== text).slice(0, BATCH);
    progress(questions.filter(({ id }) => known.hits.has(id)).length);
    if (!missing.length) return Object.fromEntries(questions.map(({ id }) => [id, known.hits.get(id).documents]));
    const answer = await call("SearchService/SearchMany", { index, queries: missing.map(({ text }) => ({ text })), options }, { signal, timeoutMs: 60000 });
    // All answers of a column are of one version.
    if (known.version !== answer.version) known = { version: answer.version, hits: new Map() };
    rankings.set(key, known);
    missing.forEach(({ id, text }, i) => known.hits.set(id, { text, documents: answer.results[i].hits.map(({ datapoint }) => datapoint.documentId || datapoint.id) }));
  }
}

/** Returns `{value, error, busy, again}` of the measures, measured again after marks. */
function useMeasures({ index, set, columns, questions, changes }) {
  const [state, setState] = useState({});
  const [turn, setTurn] = useState(0);
  const relevant = questions.filter((each) => each.relevant);
  const names = columns.map((column) => formatColumns([column]) || "auto");
  const text = JSON.stringify([index, set, names, relevant.map(({ id }) => id)]);
  useEffect(() => {
    if (!relevant.length) return setState({});
    const controller = new AbortController();
    const measure = async () => {
      setState((before) => ({ ...before, busy: "" }));
      const ranked = {};
      for (const [i, column] of columns.entries()) {
        const progress = (done) => setState((before) => ({ ...before, busy: `${nameOf(column)}: ${count(done)} of ${count(relevant.length)} questions` }));
        ranked[`${i} ${names[i]}`] = await rank(indexOf(column, index), column, relevant, controller.signal, progress);
      }
      const value = await post("/judgements/measure", { index, set, rankings: ranked }, { signal: controller.signal });
      setState({ value, names: names.join() });
    };
    const timer = setTimeout(() => measure().catch((error) => isOvertaken(error) || setState((before) => ({ ...before, busy: null, error }))), REST_MS);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [text, changes, turn, returns.value]);
  const again = () => {
    rankings.clear();
    setTurn((n) => n + 1);
  };
  return { value: state.names === names.join() ? state.value : undefined, error: state.error, busy: state.busy ?? null, relevant: relevant.length, again };
}

const value3 = (number) => number.toFixed(3);
const signed = (number) => (number < 0 ? "−" : "+") + Math.abs(number).toFixed(3);

function Interval({ mean, low, high }) {
  return html`<svg class="interval" viewBox="-3 0 106 8" aria-hidden="true"><line x1="0" x2="100" y1="4" y2="4" class="scale" />
    <line x1=${low * 100} x2=${high * 100} y1="4" y2="4" /><circle cx=${mean * 100} cy="4" r="2.5" /></svg>`;
}

function Difference({ low, high, mean }) {
  const isChance = low <= 0 && high >= 0;
  const verdict = low === 0 && high === 0 ? "equal" : isChance ? "chance?" : mean > 0 ? "better" : "worse";
  return html`<div class="small ${isChance ? "dim" : mean > 0 ? "better" : "worse"}" title="against the first column, on the same questions: ${signed(low)} to ${signed(high)}">${signed(mean)} ${verdict}</div>`;
}

function Table({ measured, columns }) {
  const measures = Object.keys(measured.columns[0].means);
  return html`<div class="scroll"><table class="measures"><thead><tr><td></td>${columns.map((column) => html`<th scope="col">${nameOf(column)}</th>`)}</tr></thead><tbody>
    ${measures.map((measure) => html`<tr><th scope="row">${measure}</th>${measured.columns.map(({ means, differences }) => html`<td>
      ${value3(means[measure].mean)} <span class="dim small" title="95 % interval: ${value3(means[measure].low)} to ${value3(means[measure].high)}">±${value3((means[measure].high - means[measure].low) / 2)}</span>
      <${Interval} ...${means[measure]} />
      ${differences[measure] && measure !== "judged@10" && html`<${Difference} ...${differences[measure]} />`}</td>`)}</tr>`)}
  </tbody></table></div>`;
}

/** Returns a passage of each document by its id, for its title and the id that Why not asks for. */
function useDocuments(index, ids) {
  return useLoaded(async (signal) => {
    if (!ids.length) return new Map();
    const where = await post("/filter", { document_id: { $in: ids } }, { signal });
    const { datapoints } = await call("SearchService/Scan", { index, where, returnFields: ["title"], pageSize: 1000 }, { signal });
    return new Map(datapoints.map((each) => [each.documentId || each.id, each]));
  }, [index, ids.join("\n")]);
}

function Missing({ index, question, document, documents, column }) {
  const datapoint = documents?.get(document);
  if (documents && !datapoint) return html`<li><bdi>${document}</bdi> <span class="dim">is not in the index</span></li>`;
  return html`<li><bdi>${datapoint?.title || document}</bdi> <${Link} to=${address("search", index, { q: question, c: column, why: datapoint?.id ?? document })}>why not?<//></li>`;
}

function Worst({ index, measured, columns, onShow }) {
  const first = formatColumns([columns[0]]);
  const ids = [...new Set(measured.worst.flatMap(({ missing }) => missing))];
  const { value: documents } = useDocuments(index, ids);
  return html`<details open><summary>Worst questions of ${nameOf(columns[0])}</summary><ol class="worst">
    ${measured.worst.map(({ id, text, values, missing }) => html`<li key=${id}><button class="value" onClick=${() => onShow(id)}><bdi>${text}</bdi></button> <span class="dim small">${values.map(value3).join(" · ")}</span>
      ${missing.length > 0 && html`<div class="small dim">relevant, and not among its ${DEPTH} hits:</div><ul class="small">${missing.map((document) => html`<${Missing} index=${index} question=${text} document=${document} documents=${documents} column=${first} />`)}</ul>`}</li>`)}
  </ol></details>`;
}

function Disputes({ contents, questions, onShow }) {
  const texts = new Map(questions.map(({ id, text }) => [id, text]));
  if (!contents.shared) return null;
  return html`<details><summary>${count(contents.disputes.length)} of ${count(contents.shared)} hits with several people's marks differ</summary><ul class="small">
    ${contents.disputes.map(({ question, document, marks }) => html`<li><button class="value" onClick=${() => onShow(question, document)}><bdi>${texts.get(question)}</bdi> · <bdi>${document}</bdi></button>
      <bdi>${marks.map(({ by, level }) => `${by || "in the file"} ${level}`).join(", ")}</bdi></li>`)}
  </ul></details>`;
}

/** The panel beside the judging. */
export function Measures({ index, set, columns, questions, contents, onShow, changes }) {
  const { value, error, busy, relevant, again } = useMeasures({ index, set, columns, questions, changes });
  return html`<aside class="measured" aria-label="Measures"><header class="line"><h2 class="grow">How well they answer</h2>
      <button class="quiet" disabled=${busy !== null || !relevant} onClick=${again}>measure again</button></header>
    ${!relevant && html`<p class="dim">Measured as soon as a hit has a mark above 0.</p>`}
    <p class="small dim" role="status">${busy || ""}</p><${Problem} error=${error} />
    ${value && html`<p class="small dim">${count(value.questions)} questions with a relevant hit; 95 % intervals${value.questions < FEW ? `. With fewer than ${FEW}, small differences do not show` : ""}.</p>
      <${Table} measured=${value} columns=${columns} /><${Worst} index=${index} measured=${value} columns=${columns} onShow=${onShow} />`}
    <${Disputes} contents=${contents} questions=${questions} onShow=${onShow} />
    <details><summary>Files</summary><p class="small">Each mark is in them at once.</p><pre>${contents.queries}
${contents.qrels}</pre><pre>scannery evaluate --index ${index} --queries ${contents.queries} --qrels ${contents.qrels}</pre></details>
  </aside>`;
}

// Why a datapoint is at its rank for a question, or why it is no hit: the steps of a search, down to the one that fails.

import { html, useState } from "../vendor/preact.js";
import { call } from "../calls.js";
import { Drawer } from "./dialog.js";
import { Problem, useLoaded } from "./load.js";
import { count, number, plain, shown } from "./values.js";

const IS_HIT = "NOTHING";

/** The panel. `request`: of the search; `id`: of the datapoint; `onPick(id)`: another one was chosen. */
export function Why({ request, id, columnName, onPick, onClose }) {
  const asked = { ...request, id };
  const { value, error, busy } = useLoaded((signal) => id && call("SearchService/Explain", asked, { signal, timeoutMs: 60000 }), [JSON.stringify(asked)]);
  return html`<${Drawer} title=${id ? "Why is it there, or not?" : "What is missing?"} onClose=${onClose}>
    <${Find} index=${request.index} id=${id} onPick=${onPick} />
    <${Problem} error=${error} />
    ${busy && !value && id && html`<p class="dim">Asking …</p>`}
    ${value && html`<${Answer} answer=${value} id=${id} columnName=${columnName} />`}
  <//>`;
}

/** A field for an id, or for words of a title: then the nearest datapoints are offered, whatever the filter. */
function Find({ index, id, onPick }) {
  const [text, setText] = useState("");
  const [near, setNear] = useState(null);
  const [error, setError] = useState(null);
  const find = async (event) => {
    event.preventDefault();
    setError(null);
    try {
      const { datapoints } = await call("SearchService/Get", { index, ids: [text], returnFields: ["title"] });
      if (datapoints.length) {
        setNear(null);
        onPick(text);
        return;
      }
      const { hits } = await call("SearchService/Search", { index, query: { text }, options: { k: 8, returnFields: ["title"] } });
      setNear(hits.map((hit) => hit.datapoint));
    } catch (failed) {
      setError(failed);
    }
  };
  return html`<form class="line" onSubmit=${find}><input class="grow" aria-label="Id, or words of the title" placeholder=${id ? "another one: id, or words of the title" : "id, or words of the title"}
      value=${text} autofocus=${!id} onInput=${(e) => setText(e.target.value)} required /> <button>Find</button></form>
    <${Problem} error=${error} />
    ${near && html`<ul class="plain">${near.length === 0 && html`<li class="dim">Nothing like it.</li>`}${near.map((each) =>
      html`<li><button class="value" onClick=${() => { setNear(null); onPick(each.id); }}><bdi>${each.title || each.id}</bdi> <code class="dim">${each.id}</code></button></li>`)}</ul>`}`;
}

function Answer({ answer, id, columnName }) {
  const reason = (answer.keptOutBy ?? "").replace("KEPT_OUT_BY_", "");
  const { datapoint } = answer.hit ?? {};
  return html`<h3><bdi>${datapoint?.title || id}</bdi> <code class="dim small">${id}</code></h3>
    <p class=${reason === IS_HIT ? "verdict" : "verdict problem"} role="status">${reason === IS_HIT
      ? html`Hit ${answer.rank} of “${columnName}”.`
      : html`No hit of “${columnName}”${answer.rank ? `; its rank is ${count(answer.rank)}` : ""}.`}
      ${answer.remedy && html`<span class="remedy">What would make it one: <b>${answer.remedy}</b></span>`}</p>
    <ol class="ladder">${steps(answer, reason)}</ol>
    ${answer.hit?.features && answer.search?.ranker && html`<${Features} values=${answer.hit.features.values} weights=${answer.search?.ranker?.weights} model=${answer.search?.ranker?.model} />`}
    ${answer.search && html`<${Plan} search=${answer.search} answer=${answer} />`}`;
}

/** A step: ✓ passed, ✗ the one that keeps it out, – told only. */
const step = (passed, title, body) => html`<li class=${passed === true ? "passed" : passed === false ? "failed" : ""}>
  <span class="sign" aria-label=${passed === true ? "passed" : passed === false ? "kept out here" : "note"}>${passed === true ? "✓" : passed === false ? "✗" : "·"}</span>
  <div><b>${title}</b>${body && html`<div class="small">${body}</div>`}</div></li>`;

function steps(answer, reason) {
  const { hit, lexical, fused } = answer;
  const list = [step(reason !== "ABSENT", reason === "ABSENT" ? "There is no such datapoint" : "It exists")];
  if (reason === "ABSENT") return list;
  if (answer.conditions.length || reason === "FILTER") list.push(step(answer.allowed, answer.allowed ? "The filter allows it" : "The filter does not allow it", conditions(answer.conditions)));
  if (reason === "FILTER") return list;
  if (reason === "QUERY") return [...list, step(false, "The question names it by its id")];
  for (const dense of answer.dense) {
    const name = dense.vectors ? `By the vector ${dense.vectors}` : "By vector";
    const cut = dense.candidateRank === undefined ? `not among the ${count(dense.candidates)} candidates` : `candidate ${count(dense.candidateRank)} of ${count(dense.candidates)}`;
    list.push(step(dense.exact ? (reason === "NOT_A_CANDIDATE" ? false : true) : null, name, dense.exact ? `score ${number(dense.exact.score)}, rank ${rankText(dense.exact)} in an exact search; ${cut}` : "it has no such vector"));
  }
  if (lexical) list.push(step(lexical.byWords ? true : reason === "NO_WORD" ? false : null, "By words", html`${lexical.byWords ? `score ${number(lexical.byWords.score)}, rank ${rankText(lexical.byWords)}` : "it has no word of the question"}<${Words} words=${lexical.words} />`));
  if (reason === "NO_VECTOR") list.push(step(false, "It has none of the vectors that are searched"));
  if (fused) {
    const alpha = answer.search?.fusion?.alpha;
    list.push(step(true, "Both together", html`score ${number(fused.score)}, rank ${rankText(fused)}${alpha !== undefined && html`; vectors weigh ${number(alpha)}, words ${number(1 - alpha)}`}
      <${Bars} parts=${[["vectors", hit?.denseScore], ["words", hit?.lexicalScore]]} />`));
  }
  if (hit?.baseScore !== undefined) list.push(step(true, "Ranking", `${number(hit.baseScore)} before, ${number(hit.score)} by ${answer.search?.ranking?.expression ?? "the ranking"}`));
  if (hit?.rerankScore !== undefined) list.push(step(true, "Reranked", `score ${number(hit.rerankScore)} by the cross-encoder`));
  const last = {
    MIN_SCORE: ["Its score is below the least that was asked for"], MIN_RELEVANCE: ["Its relevance is below the least that was asked for"],
    CROWDED: ["Better hits fill its group", answer.crowdedBy.join(", ")], DIVERSITY: ["It is like a hit before it, and diversity chose others"],
    K: [`It is not among the first hits: its rank is ${count(answer.rank)}`], OFFSET: ["It is on an earlier page"],
  }[reason];
  if (last) list.push(step(false, ...last));
  if (reason === IS_HIT) list.push(step(true, `It is hit ${answer.rank}`));
  return list;
}

const rankText = (place) => (place.rank === undefined ? "beyond 100,000" : count(place.rank));

const SIGNS = { EQ: "=", NE: "≠", GT: ">", GTE: "≥", LT: "<", LTE: "≤", IN: "is one of", NIN: "is none of", CONTAINS: "has", ALL: "has all of", EXISTS: "is set:", EMPTY: "is empty:" };

function conditions(list) {
  return html`<ul class="plain">${list.map(({ condition, negated, matches, value }) => {
    const operator = (condition.operator ?? "").replace("OPERATOR_", "");
    const passes = matches !== negated;
    return html`<li class="pair"><span class=${passes ? "up" : "down"} aria-label=${passes ? "holds" : "does not hold"}>${passes ? "✓" : "✗"}</span>
      <span>${negated ? "not " : ""}${condition.field} ${SIGNS[operator] ?? operator.toLowerCase().replace("_", " ")} <bdi>${shown((condition.values ?? []).map(plain))}</bdi></span>
      <span class="dim">${value === undefined ? "it has none" : html`it has <bdi>${shown(plain(value))}</bdi>`}</span></li>`;
  })}</ul>`;
}

function Words({ words }) {
  if (!words?.length) return null;
  const most = Math.max(...words.map((word) => word.contribution ?? 0), 1e-9);
  return html`<div class="scroll"><table class="small"><thead><tr><th scope="col">word</th><th scope="col">adds</th><th scope="col"></th><th scope="col">idf</th><th scope="col">times</th><th scope="col">datapoints</th></tr></thead><tbody>
    ${words.map((word) => html`<tr><th scope="row"><bdi>${word.term}</bdi>${word.expands && html` <span class="dim">for <bdi>${word.expands}</bdi></span>`}</th>
      <td>${number(word.contribution)}</td><td><${Meter} share=${word.contribution / most} /></td><td>${number(word.idf)}</td><td>${word.frequency}</td><td>${count(word.datapoints)}</td></tr>`)}
  </tbody></table></div>`;
}

const Meter = ({ share }) => html`<svg class="meter" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect width=${100 * Math.max(0, Math.min(1, share))} height="8" /></svg>`;

function Bars({ parts }) {
  const some = parts.filter(([, value]) => value !== undefined);
  const most = Math.max(...some.map(([, value]) => Math.abs(value)), 1e-9);
  return html`<table class="small"><tbody>${some.map(([name, value]) => html`<tr><th scope="row">${name}</th><td>${number(value)}</td><td><${Meter} share=${Math.abs(value) / most} /></td></tr>`)}</tbody></table>`;
}

function Features({ values, weights, model }) {
  return html`<h3>Learned order <code class="dim small">${model}</code></h3><table class="small"><thead><tr><th scope="col">feature</th><th scope="col">value</th><th scope="col">weight</th><th scope="col">adds</th></tr></thead><tbody>
    ${Object.entries(values).map(([name, value]) => html`<tr><th scope="row">${name}</th><td>${number(value)}</td><td>${number(weights?.[name])}</td><td>${weights?.[name] === undefined ? "" : number(value * weights[name])}</td></tr>`)}</tbody></table>`;
}

/** How the search was answered: recall, stages and segments. */
function Plan({ search, answer }) {
  const total = search.stages.reduce((sum, stage) => sum + Number(stage.durationUs), 0) || 1;
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  return html`<details class="plan"><summary>How the search was answered</summary>
    <p class="small">expected recall ${percent(search.expectedRecall)}${search.targetRecall > 0 && `, target ${percent(search.targetRecall)}`}${search.effectiveTargetRecall > search.targetRecall && `, searched as for ${percent(search.effectiveTargetRecall)}`} · version ${answer.version}, sequence ${answer.sequence}</p>
    ${search.warnings?.map((warning) => html`<p class="problem small">${warning}</p>`)}
    <table class="small"><thead><tr><th scope="col">stage</th><th scope="col">ms</th><th scope="col"></th></tr></thead><tbody>${search.stages.map((stage) =>
      html`<tr><th scope="row">${stage.stage}</th><td>${(stage.durationUs / 1000).toFixed(2)}</td><td><${Meter} share=${stage.durationUs / total} /></td></tr>`)}</tbody></table>
    <div class="scroll"><table class="small"><thead><tr><th scope="col">segment</th><th scope="col">plan</th><th scope="col">rows</th><th scope="col">allowed</th><th scope="col">leaves</th><th scope="col">compared</th><th scope="col">predicted ms</th><th scope="col">measured ms</th></tr></thead><tbody>
      ${search.segments.map((each) => html`<tr><th scope="row"><code>${each.segment}</code></th><td>${each.plan}</td><td>${count(each.rows)}</td><td>${count(each.rowsAllowed)}</td><td>${each.leavesSearched}</td><td>${count(each.candidates)}</td>
        <td>${each.predictedUs ? (each.predictedUs / 1000).toFixed(2) : "–"}</td><td>${each.measuredUs ? (each.measuredUs / 1000).toFixed(2) : "–"}</td></tr>`)}</tbody></table></div>
  </details>`;
}

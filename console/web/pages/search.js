// Search as one types, by any settings side by side.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { awaySince, call, isOvertaken, returns } from "../calls.js";
import { useKeys } from "../keys.js";
import { AskName, JudgeQuestion, LEVELS, Levels, useSearchMarks } from "../judge/marking.js";
import { Dialog } from "../parts/dialog.js";
import { PRESETS, copies, formatColumns, indexOf, messageOf, nameOf, parseColumns } from "../parts/columns.js";
import { Facets, FilterBar, parseWhere, useFilter } from "../parts/filters.js";
import { Hit, Move } from "../parts/hit.js";
import { modesOf, useIndex } from "../parts/indexes.js";
import { Problem, useLoaded } from "../parts/load.js";
import { count, withValue } from "../parts/values.js";
import { Why } from "../parts/why.js";
import { Link, address, route, setParams } from "../route.js";

const REST_MS = 120, LONG_REST_MS = 400;
const TAB = crypto.getRandomValues(new Uint32Array(2)).join("");
/** What the page asks for: nothing yet, the light searches, all of them. */
const LIGHT = 1, FULL = 2;

/** The page. `session`: what the console says of its target. */
export function Search({ session }) {
  const { index: name, params } = route.value;
  const { value: index, error } = useIndex(name);
  const [text, setText] = useState(params.get("q") ?? "");
  const [stage, setStage] = useState(FULL);
  const [entered, setEntered] = useState(0);
  const timers = useRef([]);
  const like = params.get("like") ?? "";
  const k = Math.min(1000, Math.max(1, Number(params.get("k")) || 10));
  const group = params.get("group") ?? "";
  const columns = useMemo(() => parseColumns(params.get("c")), [params.get("c")]);
  const { where, wrong } = parseWhere(params.get("where"));
  const filter = useFilter(where);
  const setWhere = (value) => setParams({ where: Object.keys(value).length ? JSON.stringify(value) : "" });
  // From the address, not from what was drawn: two changes may come before it is drawn again.
  const setColumns = (change) => setParams({ c: formatColumns(change(parseColumns(route.value.params.get("c")))) });

  // Steps back and forward bring the text of then.
  useEffect(() => setText(params.get("q") ?? ""), [params.get("q"), name]);

  const stop = () => timers.current.splice(0).forEach(clearTimeout);
  const type = (value) => {
    stop();
    setText(value);
    setStage(0);
    timers.current = [
      setTimeout(() => setStage(LIGHT), REST_MS),
      setTimeout(() => {
        setStage(FULL);
        setParams({ q: value, like: "" }, { replace: true });
      }, LONG_REST_MS),
    ];
  };
  const enter = (event) => {
    event.preventDefault();
    stop();
    setStage(FULL);
    setEntered((n) => n + 1);
    setParams({ q: text, like: "" });
  };
  const answers = useRef([]);
  const hitsOf = (column) => answers.current[column]?.hits ?? [];
  const [firstRanks, setFirstRanks] = useState(new Map());
  const box = useRef();
  const [chosen, setChosen] = useState({ column: 0, rank: -1 });
  const [open, setOpen] = useState("");
  const moveTo = (column, rank) => {
    const list = hitsOf(column);
    if (!list.length) return;
    const next = { column, rank: Math.max(0, Math.min(rank, list.length - 1)) };
    setChosen(next);
    requestAnimationFrame(() => document.querySelector(".hit.chosen")?.scrollIntoView({ block: "nearest" }));
  };
  const chosenHit = hitsOf(chosen.column)[chosen.rank];
  const chosenId = chosenHit?.datapoint.id;
  const documentOf = (datapoint) => datapoint.documentId || datapoint.id;
  const marks = useSearchMarks(name, like ? "" : (params.get("q") ?? "").trim());
  const ask = (id, column) => setParams({ why: id, wc: column || "" });
  const why = params.get("why"), whyColumn = columns[Number(params.get("wc")) || 0] ?? columns[0];
  // `autofocus` counts only in a page that is loaded, and this one may be reached by a link.
  useEffect(() => void (why || box.current.focus({ preventScroll: true })), []);
  const moreLike = (id) => id && setParams({ q: "", like: id, why: "" });
  useKeys({
    "/": ["to the question", () => box.current?.select()],
    Escape: ["leave the question", () => (document.activeElement === box.current ? box.current.blur() : false)],
    j: ["next hit", () => moveTo(chosen.column, chosen.rank + 1)],
    k: ["hit before", () => moveTo(chosen.column, chosen.rank - 1)],
    l: ["next column", () => moveTo(Math.min(chosen.column + 1, columns.length - 1), chosen.rank)],
    h: ["column before", () => moveTo(Math.max(chosen.column - 1, 0), chosen.rank)],
    Enter: ["open the hit, and close it", () => (chosenId ? setOpen(open === chosenId ? "" : chosenId) : false)],
    m: ["more like the hit", () => moreLike(chosenId)],
    e: ["why is the hit there", () => chosenId && ask(chosenId, chosen.column)],
    n: ["why is something not there", () => ask("?", chosen.column)],
    f: ["filter", () => document.getElementById("filter")?.click()],
    c: ["copy the search", () => setCopied(0)],
    ...Object.fromEntries(LEVELS.map((level, i) => [String(i), [level, () => (chosenHit && marks.mark ? marks.mark(documentOf(chosenHit.datapoint), i) : false)]])),
  });
  const [copied, setCopied] = useState(null);
  const requestOf = (column) => ({
    index: indexOf(column, name), query: like ? { id: like } : { text },
    options: messageOf(column, { k, where: filter.value, group }),
  });
  const templates = index?.spec.search?.link;
  const [shownColumn, setShownColumn] = useState(0);
  const canText = !index || (index.encoder || index.lexical || Object.values(index.namedVectors ?? {}).some((v) => v.encoder));

  return html`<main class="search">
    <h1 class="hidden">Search ${name}</h1>
    <form role="search" onSubmit=${enter} class="line">
      <input ref=${box} class="box" type="search" aria-label="Question" placeholder=${like ? `more like ${like}` : "Ask, or type words"} value=${text}
        autofocus autocomplete="off" spellcheck="false" maxlength="8000" onInput=${(event) => type(event.target.value)}
        onKeyDown=${(event) => { if (event.key === "ArrowDown") { event.preventDefault(); box.current.blur(); moveTo(chosen.column, Math.max(0, chosen.rank)); } }} />
      <label class="small">hits <input type="number" min="1" max="1000" value=${k} onChange=${(e) => setParams({ k: e.target.value === "10" ? "" : e.target.value })} /></label>
      <label class="small">one for each <select value=${group} onChange=${(e) => setParams({ group: e.target.value })}>
        <option value="">hit</option><option value="document_id">document</option>
        ${Object.entries(index?.attributes ?? {}).filter(([, type]) => !/LIST|GEO/.test(type)).map(([each]) => each).sort().map((each) => html`<option value=${each}>${each}</option>`)}
      </select></label>
    </form>
    <${JudgeQuestion} index=${name} marks=${marks} c=${params.get("c")} />
    <${FilterBar} where=${where} error=${wrong ? { message: `where ${wrong}` } : filter.error} onChange=${setWhere} />
    <${Problem} error=${error} />
    ${!canText && html`<p class="problem">This index has neither an encoder nor words, so it cannot be asked by text. Open a row in <${Link} to=${address("data", name)}>Data<//> and look at “Nearest by vector”.</p>`}
    ${index?.problem && html`<p class="problem">${index.problem}</p>`}
    <div class="body">
      <details class="panel" open=${params.get("panel") === "1"} onToggle=${(e) => setParams({ panel: e.target.open ? "1" : "" }, { replace: true })}>
        <summary>Attributes</summary>
        ${params.get("panel") === "1" && index && html`<${Facets} index=${name} attributes=${index.attributes} where=${where} filter=${filter.value} onChange=${setWhere} />`}
      </details>
      <div class="columns count-${columns.length}">
        ${columns.length > 1 && html`<div class="tabs" role="tablist">${columns.map((column, i) =>
          html`<button role="tab" aria-selected=${i === shownColumn} onClick=${() => setShownColumn(i)}>${nameOf(column)}</button>`)}</div>`}
        ${columns.map((column, i) => html`<${Column} key=${i} place=${i} isShown=${i === shownColumn} column=${column} request=${requestOf(column)}
          ready=${((canText && text.trim()) || like) && !filter.busy && !filter.error && !wrong} stage=${stage} entered=${entered} isLike=${Boolean(like)} index=${index}
          keep=${(answer) => { answers.current[i] = answer; if (i === 0) setFirstRanks(new Map(answer.hits.map((hit, rank) => [hit.datapoint.id, rank + 1]))); }}
          firstRanks=${firstRanks} chosen=${chosen.column === i ? chosen.rank : -1} open=${open} template=${templates} where=${where}
          levels=${({ datapoint }) => marks.mark && html`<${Levels} level=${marks.documents[documentOf(datapoint)]?.level} label=${datapoint.title || datapoint.id} onMark=${(level) => marks.mark(documentOf(datapoint), level)} />`}
          onValue=${(attribute, value) => setWhere(withValue(where, attribute, value))}
          onWhere=${setWhere} onLike=${moreLike} onWhy=${(id) => ask(id, i)} onOpen=${(id) => setOpen(open === id ? "" : id)} onCopy=${() => setCopied(i)}
          onColumn=${(changed) => setColumns((all) => (changed ? all.map((c, n) => (n === i ? changed : c)) : all.filter((_, n) => n !== i)))} single=${columns.length === 1} />`)}
        ${columns.length < 4 && html`<label class="add small">+ column <select aria-label="Add a column" value="" onChange=${(e) => { if (e.target.value) { const [added] = parseColumns(e.target.value); setColumns((all) => [...all, added]); } e.target.value = ""; }}>
          <option value="">beside it …</option>${PRESETS.filter((preset) => ["auto", ...modesOf(index)].includes(parseColumns(preset)[0].mode)).map((preset) => html`<option value=${preset}>${nameOf(parseColumns(preset)[0])}</option>`)}</select></label>`}
      </div>
    </div>
    ${why && (text.trim() || like) && html`<${Why} request=${requestOf(whyColumn)} id=${why === "?" ? "" : why} columnName=${nameOf(whyColumn)} onPick=${(id) => setParams({ why: id }, { replace: true })} onClose=${() => setParams({ why: "", wc: "" })} />`}
    <${AskName} />
    ${copied !== null && html`<${Copies} onClose=${() => setCopied(null)} ...${copies({ target: session.target, index: indexOf(columns[copied] ?? columns[0], name), query: text, like, column: columns[copied] ?? columns[0], where, k, group, request: requestOf(columns[copied] ?? columns[0]) })} />`}
  </main>`;
}

/** Returns the newest answer of a column, `{answer, error, busy, ms}`; an older one never replaces a newer one. */
function useAnswer(request, { phase, view, entered, keep, withSentences }) {
  const [state, setState] = useState({});
  const turn = useRef(0);
  const lastEntered = useRef(entered);
  const text = JSON.stringify(request);
  useEffect(() => {
    if (!phase) return undefined;
    const controller = new AbortController();
    const mine = ++turn.current;
    const isEntered = lastEntered.current !== entered;
    lastEntered.current = entered;
    const started = performance.now();
    const sentences = phase === FULL && withSentences ? {} : { byEncoder: false };
    const asked = request.query.text ? { ...request, options: { ...request.options, highlight: sentences } } : request;
    setState((before) => ({ ...before, busy: true }));
    call("SearchService/Search", asked, { signal: controller.signal, view: isEntered ? "" : `${TAB}.${view}` }).then(
      (answer) => {
        if (mine !== turn.current) return;
        setState({ answer, question: request.query.text, ms: performance.now() - started, busy: false });
        keep(answer);
      },
      (error) => mine === turn.current && !isOvertaken(error) && setState((before) => ({ ...before, error, busy: false })),
    );
    return () => controller.abort();
  }, [text, phase, entered, returns.value]);
  return state;
}

function Column({ levels, place, isShown, column, request, ready, stage, entered, isLike, index, keep, firstRanks, chosen, open, template, where, onValue, onWhere, onLike, onWhy, onOpen, onCopy, onColumn, single }) {
  // The first column answers each key; the others, and what takes long, wait for a rest.
  const reached = column.rerank ? (stage === FULL ? FULL : 0) : Math.max(stage, place === 0 ? LIGHT : 0);
  const withSentences = Boolean(index?.encoder) && column.mode !== "lexical";
  const phase = ready ? (withSentences || column.rerank ? reached : Math.min(reached, LIGHT)) : 0;
  const { answer, question, error, busy, ms } = useAnswer(request, { phase, view: place, entered, keep, withSentences });
  const hits = answer?.hits ?? [];
  const shared = place > 0 && answer ? hits.slice(0, 10).filter((hit) => firstRanks.get(hit.datapoint.id) <= 10).length : null;
  const mode = answer?.mode?.replace("MODE_", "").toLowerCase();
  return html`<section class="column ${isShown ? "shown" : ""} ${busy ? "busy" : ""} ${awaySince.value ? "away" : ""}" aria-label=${nameOf(column)} aria-busy=${Boolean(busy)} data-question=${question}>
    <header class="line">
      <${Settings} column=${column} index=${index} onColumn=${onColumn} single=${single} />
      <span class="dim small grow">${answer && ready ? html`${mode} · ${ms.toFixed(0)} ms${shared !== null && html` · ${shared} of 10 shared`} · version ${answer.version}` : ready && busy ? "asking …" : ""}</span>
      <button class="quiet" title="why is something not among the hits" disabled=${!ready} onClick=${() => onWhy("?")}>missing?</button>
      <button class="quiet" title="copy as Python, curl or a command" disabled=${!ready} onClick=${onCopy}>copy</button>
    </header>
    <${Problem} error=${ready ? error : null} />
    ${ready && index && answer && !error && hits.length === 0 && html`<${Empty} index=${index} where=${where} onWhere=${onWhere} />`}
    <ol class="hits">${ready && hits.map((hit, i) => {
      const { id } = hit.datapoint;
      return html`<${Hit} key=${id} hit=${hit} rank=${i + 1} template=${template} open=${open === id} chosen=${chosen === i} onValue=${onValue}
        move=${place > 0 && html`<${Move} from=${firstRanks.get(id)} to=${i + 1} />`}
        actions=${html`${levels(hit)} <button class="quiet" onClick=${() => onWhy(id)}>why</button><button class="quiet" onClick=${() => onLike(id)}>more like this</button><button class="quiet" aria-expanded=${open === id} onClick=${() => onOpen(id)}>${open === id ? "less" : "all"}</button>`} />`;
    })}</ol>
    ${place === 0 && html`<p class="hidden" role="status">${!busy && answer && ready ? `${hits.length} hits${hits[0] ? `, the first: ${hits[0].datapoint.title || hits[0].datapoint.id}` : ""}` : ""}</p>`}
  </section>`;
}

function Settings({ column, index, onColumn, single }) {
  const set = (name, value) => onColumn({ ...column, [name]: value === "" ? undefined : value });
  const field = (name, label, step) => html`<label>${label} <input type="number" min="0" max="1" step=${step} value=${column[name] ?? ""} onChange=${(e) => set(name, e.target.value === "" ? "" : Number(e.target.value))} /></label>`;
  const flag = (name, label) => html`<label><input type="checkbox" checked=${Boolean(column[name])} onChange=${(e) => set(name, e.target.checked || "")} /> ${label}</label>`;
  const rankings = Object.keys(index?.spec.search?.ranking ?? {});
  const vectors = Object.keys(index?.namedVectors ?? {});
  return html`<select aria-label="Mode" value=${column.mode} onChange=${(e) => set("mode", e.target.value)}>
      <option value="auto">as the index does</option>
      ${modesOf(index).map((mode) => html`<option value=${mode}>${mode}</option>`)}
    </select>
    <details class="menu"><summary class="small">${nameOf({ ...column, mode: "" }) || "settings"}</summary><div class="popup">
      ${field("alpha", "weight of vectors, 0 to 1", 0.05)} ${field("target_recall", "target recall", 0.01)} ${field("diversity", "diversity", 0.1)}
      <label>fusion <select value=${column.fusion ?? ""} onChange=${(e) => set("fusion", e.target.value)}><option value="">the index's</option><option value="weighted_score">scores</option><option value="reciprocal_rank">ranks</option></select></label>
      ${rankings.length > 0 && html`<label>ranking <select value=${column.ranking ?? ""} onChange=${(e) => set("ranking", e.target.value)}><option value="">score</option>${rankings.map((each) => html`<option>${each}</option>`)}</select></label>`}
      ${vectors.length > 0 && html`<label>vectors <select value=${column.vectors ?? ""} onChange=${(e) => set("vectors", e.target.value)}><option value="">the index's</option>${vectors.map((each) => html`<option>${each}</option>`)}</select></label>`}
      <label>of another index <input value=${column.index ?? ""} placeholder="a branch, a shadow" onChange=${(e) => set("index", e.target.value.trim())} /></label>
      ${flag("exact", "exact")} ${flag("prefix", "last word may be unfinished")} ${index?.spec.reranker && flag("rerank", "rerank")}
      ${!single && html`<button class="quiet" onClick=${() => onColumn(null)}>take this column away</button>`}
    </div></details>`;
}

/** Which condition leaves nothing, with a button that drops it. */
function Empty({ index, where, onWhere }) {
  const names = Object.keys(where);
  const { name } = index, isEmpty = !Number(index.rows) && !Number(index.memoryRows);
  const { value } = useLoaded(async (signal) => Promise.all(names.map(async (condition) => {
    const { [condition]: _, ...others } = where;
    const filter = Object.keys(others).length ? await (await import("../calls.js")).post("/filter", others, { signal }) : undefined;
    const { count: left } = await call("SearchService/Count", { index: name, where: filter }, { signal });
    return [condition, Number(left), others];
  })), [name, JSON.stringify(where)]);
  return html`<div class="empty"><p>${isEmpty ? html`The index has no datapoints yet: add files in <${Link} to=${address("data", name)}>Data<//>.` : "No hits."}</p>
    ${value?.map(([condition, left, others]) => html`<p><button onClick=${() => onWhere(others)}>drop ${condition}</button> <span class="dim">${count(left)} datapoints without it</span></p>`)}</div>`;
}

function Copies({ onClose, ...texts }) {
  const [done, setDone] = useState("");
  return html`<${Dialog} title="The same search" onClose=${onClose} wide>
    ${Object.entries(texts).map(([name, text]) => html`<section><header class="line"><h3 class="grow">${name}</h3>
      <button onClick=${() => navigator.clipboard.writeText(text).then(() => setDone(name))}>${done === name ? "copied" : "copy"}</button></header><pre tabindex="0">${text}</pre></section>`)}
  <//>`;
}

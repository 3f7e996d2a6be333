// The corpus in two dimensions: what is near to what, coloured by an attribute or by the hits of a question.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { call, post, returns } from "../calls.js";
import { FilterBar, parseWhere, useFilter } from "../parts/filters.js";
import { useIndex } from "../parts/indexes.js";
import { Problem, useLoaded } from "../parts/load.js";
import { typeName } from "../parts/typed_values.js";
import { count, withValue } from "../parts/values.js";
import { route, setParams } from "../route.js";
import { coloursOf, coloursOfHits, plainColours } from "./map/colours.js";
import { DIMMED } from "./map/paint.js";
import { Points, readMap, uint16 } from "./map/points.js";
import { Picked, Selection, titlesOf } from "./map/selection.js";
import { MapView } from "./map/view.js";

const LIMITS = [5000, 20000, 50000, 100000, 500000];
const MAX_UMAP = 50000, UMAP_POLL_MS = 1500;
const MAX_COLUMNS = 12, HITS = 1000, TITLE_REST_MS = 60;

/** Reads the map that the address names; `{map, error}`. */
function useMap(request, isReady) {
  const [state, setState] = useState({});
  const text = JSON.stringify(request);
  useEffect(() => {
    if (!isReady) return undefined;
    const controller = new AbortController();
    const { signal } = controller;
    setState(({ map }) => ({ map, busy: true }));
    readMap(request, (map) => !signal.aborted && setState({ map, busy: true }), signal).then(
      (map) => !signal.aborted && setState({ map }),
      (error) => !signal.aborted && setState((before) => ({ map: before.map, error })),
    );
    return () => controller.abort();
  }, [text, isReady, returns.value]);
  return state;
}

/** Asks for positions by UMAP until they are there; `{placed, state, error}`. */
function useUmap(request, isOn) {
  const [state, setState] = useState({});
  const text = JSON.stringify(request);
  useEffect(() => {
    setState({});
    if (!isOn) return undefined;
    const controller = new AbortController();
    let timer;
    const ask = async () => {
      try {
        const answer = await post("/map/umap", request, { signal: controller.signal });
        setState(answer.state === "done" ? { placed: { ids: answer.ids, x: uint16(answer.x), y: uint16(answer.y) } } : { state: answer.state, seconds: answer.seconds, error: answer.error && { message: answer.error } });
        if (!["done", "failed"].includes(answer.state)) timer = setTimeout(ask, UMAP_POLL_MS);
      } catch (error) {
        if (!controller.signal.aborted) setState({ error });
      }
    };
    ask();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [text, isOn]);
  return state;
}

/** The page. */
export function MapPage() {
  const { index: name, params } = route.value;
  const { value: index, error: missing } = useIndex(name);
  const { where, wrong } = parseWhere(params.get("where"));
  const filter = useFilter(where);
  const isUmap = params.get("by") === "umap";
  const wished = LIMITS.includes(Number(params.get("n"))) ? Number(params.get("n")) : isUmap ? 20000 : 100000;
  const limit = isUmap ? Math.min(wished, MAX_UMAP) : wished;
  const colour = params.get("colour") ?? "", question = params.get("q") ?? "", vector = params.get("vectors") ?? "";
  const listed = Object.entries(index?.attributes ?? {}).filter(([, type]) => ["string", "string_list", "bool"].includes(typeName(type))).map(([each]) => each).sort();
  const attributes = [...new Set([...(colour ? [colour] : []), ...listed])].slice(0, MAX_COLUMNS);
  const hasVectors = index && (index.dimensions > 0 || Object.keys(index.namedVectors ?? {}).length > 0);
  const vectors = vector || (index && !index.dimensions ? Object.keys(index.namedVectors ?? {})[0] : "") || "";
  const isReady = Boolean(hasVectors) && !filter.busy && !filter.error && !wrong;
  const request = { index: name, where: filter.value, limit, vector: vectors };
  const { map, error, busy } = useMap({ ...request, attributes }, isReady);
  const umap = useUmap(request, isReady && isUmap);
  const hits = useLoaded((signal) => (question && isReady
    ? call("SearchService/Search", { index: name, query: { text: question }, options: { k: HITS, where: filter.value, returnFields: ["title"] } }, { signal })
    : undefined), [name, question, JSON.stringify(filter.value), isReady]);

  const points = useMemo(() => {
    if (!map) return null;
    if (!umap.placed) return new Points(map.x, map.y);
    const rows = new Map(map.ids.map((id, row) => [id, row]));
    const kept = umap.placed.ids.map((id, i) => i).filter((i) => rows.has(umap.placed.ids[i]));
    return new Points(Uint16Array.from(kept, (i) => umap.placed.x[i]), Uint16Array.from(kept, (i) => umap.placed.y[i]), Uint32Array.from(kept, (i) => rows.get(umap.placed.ids[i])));
  }, [map, umap.placed]);
  const scheme = useMemo(() => {
    if (!map) return plainColours(0);
    if (question && hits.value?.hits.length) return coloursOfHits(map.ids, hits.value.hits);
    return colour && map.columns[colour] ? coloursOf(map.columns[colour]) : plainColours(map.ids.length);
  }, [map, colour, question, hits.value]);
  const [selected, setSelected] = useState(null);
  useEffect(() => setSelected(null), [points]);
  const colours = useMemo(() => {
    if (!points) return null;
    const mask = selected && new Uint8Array(points.length).fill(DIMMED);
    if (mask) for (const point of selected) mask[point] = 0;
    return Uint8Array.from(points.rows, (row, i) => scheme.colours[row] + (mask ? mask[i] : 0));
  }, [points, scheme, selected]);
  const rows = useMemo(() => (selected && points ? Uint32Array.from(selected, (point) => points.rows[point]) : null), [selected, points]);

  const [isLasso, setLasso] = useState(false);
  const [seen, setSeen] = useState({ count: 0 });
  const tip = useTip(name, map, points);
  const [typed, setTyped] = useState(question);
  const picked = params.get("id") ?? "";
  const pick = (id) => setParams({ id }, { replace: true });
  const setWhere = (value) => setParams({ where: Object.keys(value).length ? JSON.stringify(value) : "" });
  const selectView = () => {
    const result = [];
    points.runs(seen.box, (start, end) => {
      for (let i = start; i < end; i++) if (points.x[i] >= seen.box.left && points.x[i] <= seen.box.right && points.y[i] >= seen.box.top && points.y[i] <= seen.box.bottom) result.push(i);
    });
    setSelected(Uint32Array.from(result));
  };
  const option = (value, label) => html`<option value=${value}>${label}</option>`;
  const status = !map ? (hasVectors ? "reading …" : "") : `${count(points.length)} of ${count(map.total)} datapoints${Number(index?.rows) > map.total && map.total >= limit ? `, a sample of ${count(index?.rows)}` : ""}${busy ? " …" : ""}`;
  return html`<main class="map"><h1 class="hidden">Map of ${name}</h1>
    <form class="line" onSubmit=${(event) => { event.preventDefault(); setParams({ q: typed }); }}>
      <label>colour <select value=${colour} onChange=${(e) => setParams({ colour: e.target.value })}>${option("", "–")}${Object.keys(index?.attributes ?? {}).sort().map((each) => option(each, each))}</select></label>
      <label class="grow line">or by the hits of <input class="grow" type="search" placeholder="a question" value=${typed} onInput=${(e) => { setTyped(e.target.value); if (!e.target.value) setParams({ q: "" }); }} /></label>
      <label>placed by <select value=${isUmap ? "umap" : "pca"} onChange=${(e) => setParams({ by: e.target.value === "umap" ? "umap" : "", n: "" })}>${option("pca", "main directions (PCA)")}${option("umap", "neighbours (UMAP)")}</select></label>
      <label>of <select value=${limit} onChange=${(e) => setParams({ n: e.target.value })}>${LIMITS.filter((each) => !isUmap || each <= MAX_UMAP).map((each) => option(each, `at most ${count(each)}`))}</select></label>
      ${Object.keys(index?.namedVectors ?? {}).length > 0 && html`<label>vectors <select value=${vectors} onChange=${(e) => setParams({ vectors: e.target.value })}>${[...(index.dimensions ? [""] : []), ...Object.keys(index.namedVectors)].map((each) => option(each, each || "the index's"))}</select></label>`}
    </form>
    <${FilterBar} where=${where} error=${wrong ? { message: `where ${wrong}` } : filter.error} onChange=${setWhere} />
    <${Problem} error=${missing ?? error} /> <${Problem} error=${umap.error ?? hits.error} />
    ${index && !hasVectors && html`<p class="problem">This index has no vectors, so it has no map.</p>`}
    <div class="sheet">
      <div class="picture">
        ${points && colours && html`<${MapView} points=${points} colours=${colours} palette=${scheme.palette} isLasso=${isLasso} onHover=${tip.hover} onPick=${(point) => pick(point < 0 ? "" : map.ids[points.rows[point]])}
          onSelect=${setSelected} onView=${(number, box) => setSeen({ count: number, box })} label="Map of ${name}: arrows move, plus and minus zoom, 0 shows all; Tab leads to the list" />`}
        ${tip.part}
        <p class="line small"><span role="status">${status}${umap.state && !umap.error ? `; UMAP: ${umap.state}, ${Math.round(umap.seconds)} s` : ""}</span>
          ${map && !umap.placed && html`<span class="dim">${map.explained.map((share) => `${Math.round(100 * share)} %`).join(" and ")} of the variance</span>`}
          <span class="grow"></span>
          <button aria-pressed=${isLasso} onClick=${() => setLasso(!isLasso)} title="or drag with Shift">lasso</button>
          <button disabled=${!points || !seen.box} onClick=${selectView}>select what is in view</button></p>
      </div>
      <aside class="side" aria-label="About the points">
        ${scheme.legend.length > 0 && html`<ul class="legend">${scheme.legend.map(({ colour: tone, label, value, count: number }) => html`<li><svg width="12" height="12" aria-hidden="true"><circle cx="6" cy="6" r="5" fill="rgb(${tone.join(" ")})" /></svg>
          ${value === undefined ? label : html`<button class="value" title="only this" onClick=${() => setWhere(withValue(where, colour, value))}><bdi>${label}</bdi> <span class="dim">${count(number)}</span></button>`}</li>`)}</ul>`}
        ${picked && html`<${Picked} index=${name} id=${picked} onClose=${() => pick("")} />`}
        ${rows ? html`<${Selection} index=${name} map=${map} rows=${rows} picked=${picked} onPick=${pick} onClear=${() => setSelected(null)} onValue=${(attribute, value) => setWhere(withValue(where, attribute, value))} onIds=${(ids) => setWhere({ id: { $in: ids } })} />`
          : html`<p class="dim small">Draw a line around points, or select what is in view, to read what they are.</p>`}
      </aside>
    </div></main>`;
}

/** What a point is, beside the pointer: asked when the pointer rests. */
function useTip(name, map, points) {
  const [tip, setTip] = useState(null);
  const timer = useRef(), wanted = useRef(-1), box = useRef();
  const hover = (point, x, y) => {
    if (point === wanted.current) return;
    wanted.current = point;
    clearTimeout(timer.current);
    if (point < 0) return setTip(null);
    timer.current = setTimeout(async () => {
      const id = map.ids[points.rows[point]];
      const [{ title, text }] = await titlesOf(name, [id]).catch(() => [{ title: id, text: "" }]);
      if (wanted.current === point) setTip({ title, text: text.slice(0, 160), x, y });
    }, TITLE_REST_MS);
  };
  useEffect(() => {
    if (!tip || !box.current) return;
    const frame = box.current.parentElement;
    box.current.style.setProperty("left", `${Math.min(tip.x + 12, Math.max(0, frame.clientWidth - box.current.offsetWidth))}px`);
    box.current.style.setProperty("top", `${tip.y + 14}px`);
  }, [tip]);
  return { hover, part: tip && html`<div ref=${box} class="tip" role="tooltip"><b><bdi>${tip.title}</bdi></b><div dir="auto">${tip.text}</div></div>` };
}

// Charts of lines as SVG, with the values as a table beside them.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";

const HEIGHT = 150, LEFT = 56, RIGHT = 8, TOP = 8, BOTTOM = 20;
const TABLE_ROWS = 8;

/** Returns a few round numbers from low to high, as ticks of an axis; `isBinary`: round as bytes are; `least`: step between them. */
function ticks(low, high, { isBinary, least = 0 }, most = 4) {
  const span = high - low || Math.abs(high) || 1;
  const base = isBinary ? 2 : 10;
  const power = base ** Math.floor(Math.log(span / most) / Math.log(base));
  const step = (isBinary ? [1, 2, 4] : [1, 2, 2.5, 5, 10]).map((each) => each * power).find((each) => span / each <= most && each >= least) ?? least;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** Returns `d` of a path through points `[x, y]`; null is a gap. A point without neighbours is a short line. */
function path(points) {
  let text = "";
  let isOn = false;
  for (const point of points) {
    if (point) text += `${isOn ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}${isOn ? "" : "h.1"}`;
    isOn = Boolean(point);
  }
  return text;
}

/** Returns the width of an element in pixels, so that texts in an SVG are as large as those beside it. */
function useWidth(element) {
  const [width, setWidth] = useState(330);
  useEffect(() => {
    const observer = new ResizeObserver(([{ contentRect }]) => contentRect.width && setWidth(Math.round(contentRect.width)));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

/**
 * A chart. `lines`: `{name, points: [[x, y], …], value, isDashed, dots}`, a point null or with a null y is a gap, `value` stands
 * beside the name in place of the last one; `marks`: `[{x, y, error, title}]`.
 * `shown`, `shownX`: texts of values; `from`: lowest upper end of the y axis; `low`: its lower end, else that of the values;
 * `children`: a table in place of that of the last values.
 */
export function Chart({ title, lines, marks = [], shown, shownX, low, from = 0, domain, xTitle, rowTitle, isBinary, least, children }) {
  const [near, setNear] = useState(null);
  const box = useRef();
  const width = useWidth(box);
  const all = lines.flatMap(({ points }) => points.filter((point) => point && point[1] != null));
  const drawn = [...all, ...lines.flatMap(({ dots = [] }) => dots), ...marks.flatMap(({ x, y, error = 0 }) => [[x, y - error], [x, y + error]])];
  if (!all.length) return html`<figure class="chart"><figcaption>${title}</figcaption><div ref=${box} class="dim small">no values in this time</div></figure>`;
  const xs = domain ?? [Math.min(...drawn.map(([x]) => x)), Math.max(...drawn.map(([x]) => x))];
  const bottom = low ?? Math.min(...drawn.map(([, y]) => y));
  const top = Math.max(from, bottom + (Math.max(...drawn.map(([, y]) => y)) - bottom) * 1.05) || 1;
  const px = (x) => LEFT + ((x - xs[0]) / (xs[1] - xs[0] || 1)) * (width - LEFT - RIGHT);
  const py = (y) => HEIGHT - BOTTOM - ((y - bottom) / (top - bottom || 1)) * (HEIGHT - TOP - BOTTOM);
  const move = (event) => {
    const x = xs[0] + (event.clientX - event.currentTarget.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT) * (xs[1] - xs[0]);
    setNear(all.reduce((best, [each]) => (best === null || Math.abs(each - x) < Math.abs(best - x) ? each : best), null));
  };
  const at = (points, x) => points.find((point) => point && point[0] === x)?.[1];
  const last = lines.map(({ points, value }) => value ?? points.at(-1)?.[1]);
  const reading = near === null ? last : lines.map(({ points }) => at(points, near));
  const rows = [...new Set(all.map(([x]) => x))].sort((a, b) => a - b).slice(-TABLE_ROWS);
  return html`<figure class="chart">
    <div ref=${box}></div>
    <figcaption class="line"><span class="grow">${title}${near !== null && html` <span class="dim small">${shownX(near)}</span>`}</span></figcaption>
    <ul class="legend">${lines.map(({ name }, i) => html`<li class="line-${i % 6}"><span aria-hidden="true">━</span> ${name} <b>${reading[i] == null ? "–" : shown(reading[i])}</b></li>`)}</ul>
    <svg width=${width} height=${HEIGHT} viewBox=${`0 0 ${width} ${HEIGHT}`} role="img" aria-label=${`${title}: ${lines.map(({ name }, i) => `${name} ${last[i] == null ? "–" : shown(last[i])}`).join(", ")}`}
        onPointerMove=${move} onPointerLeave=${() => setNear(null)}>
      ${ticks(bottom, top, { isBinary, least }).map((y) => html`<line class="grid" x1=${LEFT} x2=${width - RIGHT} y1=${py(y)} y2=${py(y)} /><text x=${LEFT - 5} y=${py(y) + 4} text-anchor="end">${shown(y)}</text>`)}
      <text x=${LEFT} y=${HEIGHT - 4}>${shownX(xs[0])}</text><text x=${width - RIGHT} y=${HEIGHT - 4} text-anchor="end">${shownX(xs[1])}</text>
      ${xTitle && html`<text x=${(LEFT + width) / 2} y=${HEIGHT - 4} text-anchor="middle">${xTitle}</text>`}
      ${near !== null && html`<line class="near" x1=${px(near)} x2=${px(near)} y1=${TOP} y2=${HEIGHT - BOTTOM} />`}
      ${lines.map(({ points, isDashed, dots = [] }, i) => html`<path class="line-${i % 6} ${isDashed ? "dashed" : ""}" d=${path(points.map((point) => point && point[1] != null ? [px(point[0]), py(point[1])] : null))} />
        ${dots.map(([x, y]) => html`<circle class="line-${i % 6}" cx=${px(x)} cy=${py(y)} r="2.5" />`)}`)}
      ${marks.map(({ x, y, error, title: text, line = 0 }) => html`<g class="mark line-${line % 6}"><title>${text}</title>
        ${error ? html`<line x1=${px(x)} x2=${px(x)} y1=${py(y - error)} y2=${py(y + error)} />` : ""}<circle cx=${px(x)} cy=${py(y)} r="5" /></g>`)}
    </svg>
    ${children ?? html`<details class="small"><summary>as a table</summary><div class="scroll" tabindex="0"><table><thead><tr><th scope="col">${rowTitle}</th>${lines.map(({ name }) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${rows.map((x) => html`<tr><th scope="row">${shownX(x)}</th>${lines.map(({ points }) => html`<td>${at(points, x) == null ? "–" : shown(at(points, x))}</td>`)}</tr>`)}</tbody></table></div></details>`}
  </figure>`;
}

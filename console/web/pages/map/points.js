// The points of a map: read page by page, and sorted into the cells of a grid, so that a view reads its part only.

import { call } from "../../calls.js";
import { plain } from "../../parts/values.js";

/** Positions are 0 to SIDE - 1 on both axes. */
export const SIDE = 65536;
const CELLS = 128;
const CELL = SIDE / CELLS;

/** Returns the bytes of base64 as numbers. */
export function uint16(text) {
  const raw = atob(text ?? "");
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Uint16Array(bytes.buffer);
}

/**
 * Reads a map by `Project`; `onPart(map)` gets what is there so far, at the first page and each time it has doubled.
 * Returns `{ids, x, y, columns, total, version, sequence, explained}`; a column is `{values, codes}`, 0 for none.
 */
export async function readMap(request, onPart, signal) {
  const ids = [], xs = [], ys = [];
  const columns = request.attributes.map((name) => ({ name, values: [], numbers: new Map(), parts: [] }));
  let pageToken = "", index = request.index, shown = 0, answer;
  const map = () => ({
    ids: ids.slice(), x: joined(xs, Uint16Array), y: joined(ys, Uint16Array),
    columns: Object.fromEntries(columns.map(({ name, values, parts }) => [name, { values: values.slice(), codes: joined(parts, Uint32Array) }])),
    total: Number(answer.total), version: answer.version, sequence: answer.sequence, index, explained: answer.explained,
  });
  do {
    answer = await call("SearchService/Project", { ...request, index, pageSize: 10000, pageToken }, { signal, timeoutMs: 120000 });
    for (const id of answer.ids) ids.push(id);
    xs.push(uint16(answer.x));
    ys.push(uint16(answer.y));
    answer.attributes.forEach((column, i) => addPage(columns[i], column));
    pageToken = answer.nextPageToken;
    index = answer.index || index;
    if (pageToken && ids.length >= 2 * shown) {
      shown = ids.length;
      onPart(map());
    }
  } while (pageToken);
  return map();
}

/** Appends the values of a page to those of the whole map: each page counts its distinct values anew. */
function addPage(column, page) {
  const numbers = (page.values ?? []).map((message) => {
    const value = plain(message), key = JSON.stringify(value);
    if (!column.numbers.has(key)) column.numbers.set(key, column.values.push(value));
    return column.numbers.get(key);
  });
  column.parts.push(Uint32Array.from(uint16(page.codes), (code) => (code ? numbers[code - 1] : 0)));
}

function joined(parts, Kind) {
  const all = new Kind(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** Points sorted by cell. `rows`: the row of the map that each is of. */
export class Points {
  constructor(x, y, rows) {
    const count = x.length, cells = new Uint16Array(count);
    this.starts = new Uint32Array(CELLS * CELLS + 1);
    for (let i = 0; i < count; i++) this.starts[(cells[i] = (y[i] >> 9) * CELLS + (x[i] >> 9)) + 1]++;
    for (let cell = 0; cell < CELLS * CELLS; cell++) this.starts[cell + 1] += this.starts[cell];
    const next = this.starts.slice();
    this.x = new Uint16Array(count);
    this.y = new Uint16Array(count);
    this.rows = new Uint32Array(count);
    for (let i = 0; i < count; i++) {
      const at = next[cells[i]]++;
      this.x[at] = x[i];
      this.y[at] = y[i];
      this.rows[at] = rows ? rows[i] : i;
    }
    this.length = count;
  }

  /** Calls `each(start, end)` for the runs of points in the cells that a box touches. */
  runs({ left, top, right, bottom }, each) {
    const cell = (value) => Math.max(0, Math.min(CELLS - 1, Math.floor(value / CELL)));
    if (right < 0 || bottom < 0 || left >= SIDE || top >= SIDE) return;
    const [first, last] = [cell(left), cell(right)];
    for (let row = cell(top); row <= cell(bottom); row++) {
      const start = this.starts[row * CELLS + first], end = this.starts[row * CELLS + last + 1];
      if (end > start) each(start, end);
    }
  }

  /** Returns the number of points in the cells that a box touches. */
  countIn(box) {
    let count = 0;
    this.runs(box, (start, end) => (count += end - start));
    return count;
  }

  /** Returns the point that is nearest to a place, at most `radius` away; -1: there is none. */
  nearest(px, py, radius) {
    let best = -1, least = radius * radius;
    this.runs({ left: px - radius, right: px + radius, top: py - radius, bottom: py + radius }, (start, end) => {
      for (let i = start; i < end; i++) {
        const d = (this.x[i] - px) ** 2 + (this.y[i] - py) ** 2;
        if (d <= least) [best, least] = [i, d];
      }
    });
    return best;
  }

  /** Returns the points inside of a polygon, `[[x, y], …]`: cells inside of it are taken whole. */
  inside(polygon) {
    const result = [];
    const crossed = crossedCells(polygon);
    const xs = polygon.map(([x]) => x), ys = polygon.map(([, y]) => y);
    const clamp = (value) => Math.max(0, Math.min(CELLS - 1, Math.floor(value / CELL)));
    for (let row = clamp(Math.min(...ys)); row <= clamp(Math.max(...ys)); row++) {
      for (let column = clamp(Math.min(...xs)); column <= clamp(Math.max(...xs)); column++) {
        const cell = row * CELLS + column, start = this.starts[cell], end = this.starts[cell + 1];
        if (end === start) continue;
        const isCrossed = crossed.has(cell);
        if (!isCrossed && !isInside(polygon, (column + 0.5) * CELL, (row + 0.5) * CELL)) continue;
        for (let i = start; i < end; i++) if (!isCrossed || isInside(polygon, this.x[i], this.y[i])) result.push(i);
      }
    }
    return Uint32Array.from(result);
  }
}

function crossedCells(polygon) {
  const cells = new Set();
  polygon.forEach(([x, y], i) => {
    const [toX, toY] = polygon[(i + 1) % polygon.length];
    // Half a cell a step, with the cells around it: none that the line touches is missed.
    const steps = Math.max(1, Math.ceil(Math.max(Math.abs(toX - x), Math.abs(toY - y)) / (CELL / 2)));
    for (let step = 0; step <= steps; step++) {
      const column = Math.floor((x + ((toX - x) * step) / steps) / CELL), row = Math.floor((y + ((toY - y) * step) / steps) / CELL);
      for (let dr = -1; dr <= 1; dr++) for (let dc = -1; dc <= 1; dc++) if (column + dc >= 0 && column + dc < CELLS) cells.add((row + dr) * CELLS + column + dc);
    }
  });
  return cells;
}

function isInside(polygon, px, py) {
  let inside = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [xi, yi] = polygon[i], [xj, yj] = polygon[j];
    if (yi > py !== yj > py && px < ((xj - xi) * (py - yi)) / (yj - yi) + xi) inside = !inside;
  }
  return inside;
}

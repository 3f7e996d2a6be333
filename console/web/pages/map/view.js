// The drawing, and how hands move it: drag, wheel, two fingers, keys, and a line around points.

import { html, useEffect, useRef } from "../../vendor/preact.js";
import { Painter, boxOf, wholeView } from "./paint.js";

const SETTLE_MS = 160, HOVER_PX = 10, CLICK_PX = 4;
const STEP = 0.12, ZOOM = 1.25, MAX_SCALE = 4;

/**
 * The canvas. `onHover(point, x, y)`, -1 for none; `onPick(point)`; `onSelect(points)`; `onView(count, box)` after each move.
 * `isLasso`: dragging draws a line around points, as with Shift at any time.
 */
export function MapView({ points, colours, palette, isLasso, label, onHover, onPick, onSelect, onView }) {
  const frame = useRef(), cloud = useRef(), dots = useRef(), line = useRef();
  const state = useRef({ view: null, painter: null, pointers: new Map(), lasso: null, request: 0, timer: 0 });
  const latest = useRef({});
  latest.current = { points, isLasso, onHover, onPick, onSelect, onView };
  const now = state.current;

  const draw = (isMoving) => {
    now.isMoving = isMoving;
    now.request ||= requestAnimationFrame(() => {
      now.request = 0;
      if (!now.view || !frame.current) return;
      const count = now.painter.draw(now.view, now.isMoving);
      if (!now.isMoving) latest.current.onView(count, boxOf(now.view));
    });
    clearTimeout(now.timer);
    if (isMoving) now.timer = setTimeout(() => draw(false), SETTLE_MS);
  };
  const local = (event) => {
    const box = frame.current.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const toMap = ([px, py]) => [now.view.x + (px - now.view.width / 2) / now.view.scale, now.view.y + (py - now.view.height / 2) / now.view.scale];
  const zoom = (factor, at) => {
    const before = toMap(at);
    const least = wholeView(now.view.width, now.view.height).scale / 2;
    now.view.scale = Math.max(least, Math.min(MAX_SCALE, now.view.scale * factor));
    const after = toMap(at);
    now.view.x += before[0] - after[0];
    now.view.y += before[1] - after[1];
    draw(true);
  };
  const middle = () => [now.view.width / 2, now.view.height / 2];
  const showLine = () => line.current.setAttribute("points", (now.lasso ?? []).map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" "));

  useEffect(() => {
    now.painter = new Painter(cloud.current, dots.current);
    const resize = new ResizeObserver(() => {
      if (!frame.current) return;
      const { clientWidth: width, clientHeight: height } = frame.current;
      if (!width || !height) return;
      const ratio = Math.min(2, devicePixelRatio || 1);
      Object.assign(dots.current, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
      if (now.view) Object.assign(now.view, { width, height });
      else now.view = wholeView(width, height);
      draw(false);
    });
    resize.observe(frame.current);
    const wheel = (event) => {
      event.preventDefault();
      zoom(Math.exp(-Math.max(-100, Math.min(100, event.deltaY)) / 300), local(event));
    };
    // Preact listens passively to wheels, so that this one could not keep the page from scrolling.
    frame.current.addEventListener("wheel", wheel, { passive: false });
    return () => {
      resize.disconnect();
      cancelAnimationFrame(now.request);
      clearTimeout(now.timer);
    };
  }, []);
  useEffect(() => {
    now.painter.set(points, colours, palette);
    draw(false);
  }, [points, colours, palette]);

  const hover = (event) => {
    const [x, y] = local(event);
    onHover(points.nearest(...toMap([x, y]), HOVER_PX / now.view.scale), x, y);
  };
  const down = (event) => {
    if (event.button) return;
    frame.current.setPointerCapture(event.pointerId);
    now.pointers.set(event.pointerId, local(event));
    now.start = local(event);
    now.lasso = now.pointers.size === 1 && (isLasso || event.shiftKey) ? [local(event)] : null;
    onHover(-1);
  };
  const move = (event) => {
    if (!now.view) return;
    const before = now.pointers.get(event.pointerId), here = local(event);
    if (!before) return hover(event);
    if (now.lasso) {
      now.lasso.push(here);
      return showLine();
    }
    const away = [...now.pointers].find(([id]) => id !== event.pointerId)?.[1];
    now.pointers.set(event.pointerId, here);
    if (away) {
      const size = (point) => Math.hypot(point[0] - away[0], point[1] - away[1]) || 1;
      return zoom(size(here) / size(before), [(here[0] + away[0]) / 2, (here[1] + away[1]) / 2]);
    }
    now.view.x -= (here[0] - before[0]) / now.view.scale;
    now.view.y -= (here[1] - before[1]) / now.view.scale;
    draw(true);
  };
  const up = (event) => {
    const here = local(event);
    const isClick = now.start && now.pointers.size === 1 && Math.hypot(here[0] - now.start[0], here[1] - now.start[1]) < CLICK_PX;
    now.pointers.delete(event.pointerId);
    const lasso = now.lasso;
    now.lasso = null;
    showLine();
    if (event.type === "pointercancel") return;
    if (isClick) onPick(points.nearest(...toMap(here), HOVER_PX / now.view.scale));
    else if (lasso?.length > 2) onSelect(points.inside(lasso.map(toMap)));
  };
  const key = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const shift = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (shift) {
      now.view.x += (shift[0] * STEP * now.view.width) / now.view.scale;
      now.view.y += (shift[1] * STEP * now.view.height) / now.view.scale;
      draw(true);
    } else if (["+", "="].includes(event.key)) zoom(ZOOM, middle());
    else if (event.key === "-") zoom(1 / ZOOM, middle());
    else if (event.key === "0") {
      now.view = wholeView(now.view.width, now.view.height);
      draw(true);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return html`<div ref=${frame} class="drawing" tabindex="0" role="application" aria-roledescription="map" aria-label=${label}
    onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${up} onPointerLeave=${() => onHover(-1)} onKeyDown=${key}>
    <canvas ref=${cloud} aria-hidden="true" /><canvas ref=${dots} aria-hidden="true" />
    <svg aria-hidden="true"><polygon ref=${line} points="" /></svg></div>`;
}

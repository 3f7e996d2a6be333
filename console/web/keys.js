// Keys of the keyboard: each part of a page says which it takes.

import { effect, signal, useEffect, useRef } from "./vendor/preact.js";

const layers = [];
const G_MS = 1500;
let afterG = 0;

/** Whether single letters are taken (WCAG 2.1.4: they can be turned off). */
export const lettersOn = signal(localStorage.getItem("letters") !== "off");
effect(() => localStorage.setItem("letters", lettersOn.value ? "on" : "off"));

/**
 * Takes keys while a part is shown: `{"j": ["next hit", () => …], "g s": […]}`; the part that was shown last comes first.
 * A handler that returns false leaves the key to others.
 */
export function useKeys(keys) {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    layers.push(latest);
    return () => layers.splice(layers.indexOf(latest), 1);
  }, []);
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const typing = event.target.closest?.("input:not([type=checkbox],[type=radio],[type=range]), textarea, select");
  const isLetter = event.key.length === 1;
  if (isLetter && (typing || !lettersOn.value)) return;
  const name = isLetter && Date.now() - afterG < G_MS ? `g ${event.key}` : event.key;
  afterG = event.key === "g" ? Date.now() : 0;
  // A button that has the focus is pressed by these.
  if (["Enter", " "].includes(event.key) && (typing || event.target.closest?.("a, button, summary"))) return;
  for (const layer of [...layers].reverse()) {
    const entry = layer.current[name];
    if (entry && entry[1](event) !== false) {
      event.preventDefault();
      return;
    }
  }
});

/** What each key does that works now: `[key, text]`. */
export const keysNow = () => [...new Map(layers.flatMap((layer) => Object.entries(layer.current)).filter(([, [text]]) => text).map(([key, [text]]) => [key, text]))];

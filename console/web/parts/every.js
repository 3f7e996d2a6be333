// What a page asks again and again while it is shown.

import { useEffect, useRef } from "../vendor/preact.js";

/** Calls `run` each so many milliseconds, and not before what it returned is settled. Browsers slow pages in the background. */
export function useEvery(ms, run, depends) {
  const latest = useRef(run);
  latest.current = run;
  useEffect(() => {
    let isShown = true;
    let timer;
    const turn = async () => {
      await latest.current();
      if (isShown) timer = setTimeout(turn, ms);
    };
    timer = setTimeout(turn, ms);
    return () => {
      isShown = false;
      clearTimeout(timer);
    };
  }, depends);
}

// What is known of the indexes; asked once, and again when the server is back.

import { call } from "../calls.js";
import { useLoaded } from "./load.js";
import { bare } from "./values.js";

/** Returns all indexes (IndexInfo), as `useLoaded` does. */
export function useIndexes() {
  return useLoaded(async (signal) => {
    const indexes = [];
    let pageToken = "";
    do {
      const page = await call("IndexService/ListIndexes", { pageToken }, { signal });
      indexes.push(...page.indexes);
      pageToken = page.nextPageToken;
    } while (pageToken);
    return indexes;
  }, []);
}

/** Returns one index with its spec, as `useLoaded` does. */
export function useIndex(name) {
  return useLoaded(async (signal) => {
    const { index } = await call("IndexService/GetIndex", { index: name }, { signal });
    return { ...index, attributes: bare(index.attributes), spec: JSON.parse(index.specJson || "{}") };
  }, [name]);
}

/** Whether datapoints have vectors that a search compares; without any, an index is searched by words. */
export const hasVectors = (index) => Boolean(index.encoder) || index.dimensions > 0 || Object.keys(index.namedVectors ?? {}).length > 0;

/** The modes in which an index can be searched; all of them, before it is loaded. */
export function modesOf(index) {
  const dense = !index || hasVectors(index), lexical = !index || index.lexical;
  return [dense && lexical && "hybrid", dense && "dense", lexical && "lexical"].filter(Boolean);
}

// Specs of versions, key by key.

/** Returns `[key, text]` of all values of a spec by their paths, `scann.leaves`; lists are one value. */
function flat(value, path = "") {
  if (value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) {
    return Object.entries(value).flatMap(([name, each]) => flat(each, path ? `${path}.${name}` : name));
  }
  return [[path, JSON.stringify(value)]];
}

/** Returns `[key, first, second]` of the values in which two specs differ, by key; undefined: it is not set. */
export function differences(first, second) {
  const [a, b] = [first, second].map((spec) => new Map(flat(spec)));
  return [...new Set([...a.keys(), ...b.keys()])].sort().filter((key) => a.get(key) !== b.get(key)).map((key) => [key, a.get(key), b.get(key)]);
}

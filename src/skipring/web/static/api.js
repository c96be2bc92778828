/** Requests to the server; every failure becomes an Error with a sentence for the reader. */

async function ask(path, parameters, options) {
  const query = new URLSearchParams(parameters);
  let response;
  try {
    response = await fetch(`/api/${path}?${query}`, { credentials: "same-origin", ...options });
  } catch {
    throw new Error("The dashboard does not answer; is `skipring dashboard` still running?");
  }
  if (!response.ok) throw new Error(await refusalOf(response));
  return response.json().catch(() => ({}));
}

async function refusalOf(response) {
  const { error } = await response.json().catch(() => ({}));
  return error ?? `The dashboard answered with status ${response.status}.`;
}

/** Return why the server refuses a stream; null if it does not, or does not answer. */
export async function whyRefused(address) {
  const end = new AbortController();
  try {
    const response = await fetch(address, { signal: end.signal });
    return response.ok ? null : await refusalOf(response);
  } catch {
    return null;
  } finally {
    end.abort(); // a stream that is let in would never end
  }
}

/** GET an answer. */
export const get = (path, parameters = {}) => ask(path, parameters, {});

/** POST a body, get an answer. */
export const post = (path, parameters, body) =>
  ask(path, parameters, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });

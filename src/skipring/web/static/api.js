/** Questions to the server; whatever goes wrong becomes an Error with a sentence for the reader. */

async function ask(path, parameters, options) {
  const query = new URLSearchParams(parameters);
  let response;
  try {
    response = await fetch(`/api/${path}?${query}`, { credentials: "same-origin", ...options });
  } catch {
    throw new Error("The dashboard does not answer; is `skipring dashboard` still running?");
  }
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  throw new Error(body.error ?? `The dashboard answered with status ${response.status}.`);
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

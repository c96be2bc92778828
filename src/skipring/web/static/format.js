/** Texts of numbers, times and messages. */

const whole = new Intl.NumberFormat("en");

/** A whole number with separators. */
export const count = (number) => whole.format(number);

/** A number with its noun: "1 node", "2 nodes". */
export const counted = (number, one, many = `${one}s`) =>
  `${count(number)} ${number === 1 ? one : many}`;

/** A number with at most `places` decimals, without trailing zeros. */
export const decimal = (number, places = 2) => String(Number(number.toFixed(places)));

/** Return the time of day; a publication may have none. */
export const clock = (time) =>
  time ? new Date(time).toLocaleTimeString("en-GB") : "––:––:––";

/** A duration in seconds, short. */
export function seconds(milliseconds) {
  const value = milliseconds / 1000;
  if (value < 10) return `${decimal(value, 1)} s`;
  return value < 120 ? `${Math.round(value)} s` : `${decimal(value / 60, 1)} min`;
}

/** A latency in milliseconds, without its unit. */
export const latency = (milliseconds) =>
  milliseconds < 100 ? milliseconds.toFixed(1) : count(Math.round(milliseconds));

const total = (wrong) => Object.values(wrong).reduce((sum, each) => sum + each, 0);

/** State of a scene: "healthy", "syncing" while only publications are missing, or "degraded". */
export const stateOf = ({ legitimate, wrong }) =>
  legitimate ? (wrong.PUB ? "syncing" : "healthy") : "degraded";

/** Health of a scene: "healthy", "out of sync: 2 members" or "degraded: 12 faults". */
export function verdictOf({ legitimate, members, wrong }) {
  if (legitimate) return wrong.PUB ? `out of sync: ${counted(wrong.PUB, "member")}` : "healthy";
  return members === 0 ? "no members" : `degraded: ${counted(total(wrong), "fault")}`;
}

/** Content of a message in one line. */
export const contentOf = (message) =>
  message.text ?? `binary, ${counted(message.bytes, "byte")}`;

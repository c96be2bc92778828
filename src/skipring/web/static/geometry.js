/** Layout of the nodes; this module does not access the page. */

const TURN = 2 * Math.PI;
const NAMES_MAX = 64; // Our guess: with more nodes their names would touch.
const BITS_MAX = 32;
const BELOW = { x: 0, y: 1 };
const BESIDE = { x: 1, y: 0 };
const TRAY_GAP = 34;

/** Frame of the stage: centre and radius of the ring, and the tray beside it. */
export function frameOf(width, height, count) {
  const isTall = width < height * 1.1;
  const margin = count <= BITS_MAX ? 66 : count <= NAMES_MAX ? 62 : 40;
  const usable = isTall ? height - 250 : height;
  const radius = Math.max(60, Math.min(width, usable) / 2 - margin);
  const centre = { x: width / 2, y: isTall ? 110 + usable / 2 : height / 2 };
  const tray = isTall
    ? { x: 24, y: height - 138, width: width - 48, height: 26 }
    : { x: 30, y: 128, width: Math.max(40, width / 2 - radius - 90), height: height - 230 };
  return { width, height, count, radius, centre, tray };
}

/** Return the radius of a dot; nodes with short labels, which have long shortcuts, are larger. */
export function dotRadius(frame, label, levels) {
  const room = (TURN * frame.radius) / Math.max(1, frame.count);
  const plain = Math.min(10, Math.max(1.7, room * 0.36));
  const rank = label === null ? 1 : Math.min(1, label.length / levels);
  return plain * (1 + (plain < 5 ? 0.9 : 0.45) * (1 - rank));
}

/** Return whether names, or names and labels, are readable beside this number of nodes. */
export const hasNames = (count) => count <= NAMES_MAX;
export const hasBits = (count) => count <= BITS_MAX;

/** Return spots on the circle, label 0 on top, clockwise; equal labels are stacked inwards. */
export function ringSpots(nodes, frame) {
  const spots = new Map();
  const crowd = new Map();
  for (const { node, turn } of nodes) {
    if (turn === null) continue;
    const behind = crowd.get(turn) ?? 0;
    crowd.set(turn, behind + 1);
    spots.set(node, { ...onCircle(turn, frame, 1 / (1 + 0.06 * behind)), isBehind: behind > 0 });
  }
  putIntoTray(nodes, spots, frame);
  return spots;
}

function onCircle(turn, { centre, radius }, share) {
  const angle = turn * TURN;
  const out = { x: Math.sin(angle), y: -Math.cos(angle) };
  return { x: centre.x + out.x * radius * share, y: centre.y + out.y * radius * share, out };
}

/** Return spots of the broadcast tree, the root on top. */
export function treeSpots(nodes, tree, frame) {
  const depths = rowsOf(tree);
  const rows = Math.max(1, ...depths.map(({ depth }) => depth));
  const leaves = Math.max(1, ...depths.map(({ across }) => across + 1));
  const present = new Set(nodes.map(({ node }) => node));
  const box = { left: 40, right: frame.width - 40, top: 104, bottom: frame.height - 148 };
  const spots = new Map();
  for (const { node, depth, across, isLeaf } of depths) {
    if (!present.has(node)) continue;
    const x = box.left + ((across + 0.5) / leaves) * (box.right - box.left);
    const y = box.top + (depth / rows) * (box.bottom - box.top);
    spots.set(node, { x, y, out: isLeaf ? BELOW : BESIDE });
  }
  putIntoTray(nodes, spots, { ...frame, tray: { x: 30, y: 100, width: 60, height: 200 } });
  return spots;
}

/** Return depth and horizontal place of each node: leaves side by side, parents centred. */
function rowsOf(tree) {
  const children = new Map();
  const below = new Set();
  for (const [parent, child] of tree) {
    if (below.has(child)) continue; // in a damaged ring two may take themselves for its parent
    below.add(child);
    children.set(parent, [...(children.get(parent) ?? []), child]);
  }
  const found = [];
  const seen = new Set();
  let leaves = 0;
  const visit = (node, depth) => {
    seen.add(node);
    const places = (children.get(node) ?? [])
      .filter((child) => !seen.has(child))
      .map((child) => visit(child, depth + 1));
    const across = places.length ? (places[0] + places.at(-1)) / 2 : leaves++;
    found.push({ node, depth, across, isLeaf: places.length === 0 });
    return across;
  };
  for (const root of children.keys()) if (!below.has(root) && !seen.has(root)) visit(root, 0);
  return found;
}

function putIntoTray(nodes, spots, { tray }) {
  const homeless = nodes.filter(({ node }) => !spots.has(node));
  const room = Math.sqrt((tray.width * tray.height) / Math.max(1, homeless.length));
  const gap = Math.min(TRAY_GAP, Math.max(4, room));
  const columns = Math.max(1, Math.floor(tray.width / gap) + 1);
  homeless.forEach(({ node }, place) => {
    const x = tray.x + (place % columns) * gap;
    const y = tray.y + Math.floor(place / columns) * gap * (gap === TRAY_GAP ? 1.2 : 1);
    spots.set(node, { x, y, out: null });
  });
}

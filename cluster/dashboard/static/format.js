// Numbers as people read them, and small helpers for the page. No state.

export const NOTHING = "–";

export function number(value, digits = 0) {
  if (value === null || value === undefined || Number.isNaN(value)) return NOTHING;
  return value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: 0 });
}

/** Milliseconds with three digits that count. */
export function ms(value) {
  if (value === null || value === undefined) return NOTHING;
  if (value >= 10000) return `${number(value / 1000, 1)} s`;
  return `${number(value, value >= 100 ? 0 : value >= 10 ? 1 : 2)} ms`;
}

export function percent(share) {
  if (share === null || share === undefined) return NOTHING;
  const value = 100 * share;
  return `${number(value, value >= 10 ? 1 : 2)} %`;
}

export function at(curve, wanted) {
  const found = (curve || []).find(([p]) => p === wanted);
  return found ? found[1] : null;
}

/** An element with text and attributes. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** Set a text only where it changed, so that a selection and a screen reader are left alone. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export const SERIES = 8;
export const seriesColor = (index) => color(`--c${index % SERIES}`);

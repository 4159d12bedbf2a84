"use strict";
// Everything that a model wrote enters the page here, as text nodes. Nothing in these scripts parses HTML from it.

/** An element with a class, attributes and children (strings become text nodes). */
function make(tag, options = {}, ...children) {
  const { className, on, ...attributes } = options;
  const node = document.createElement(tag);
  if (className) node.className = className;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  for (const [name, listener] of Object.entries(on || {})) node.addEventListener(name, listener);
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

function makeSvg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// C0 and C1 controls but for newline; soft hyphen; bidi marks and overrides; zero-width characters; separators;
// tags; lone surrogates. The same as report/text.py spells out.
const INVISIBLE = new RegExp(
  "[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f" +
  "\\ufeff\\ufff9-\\ufffb\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}\\ud800-\\udfff]", "gu");

function spellOut(character) {
  const code = character.codePointAt(0);
  if (code === 9) return "\\t";
  if (code === 13) return "\\r";
  const hex = (digits) => code.toString(16).padStart(digits, "0");
  return code < 0x100 ? "\\x" + hex(2) : code < 0x10000 ? "\\u" + hex(4) : "\\U" + hex(8);
}

/** The text as text nodes, its control and invisible characters spelt out and marked, a searched word marked. */
function inert(text, query = null) {
  const fragment = document.createDocumentFragment();
  const plain = (piece) => {
    if (!query) { fragment.append(piece); return; }
    let at = 0;
    for (const match of piece.matchAll(query)) {
      if (match.index > at) fragment.append(piece.slice(at, match.index));
      fragment.append(make("mark", {}, match[0]));
      at = match.index + match[0].length;
    }
    fragment.append(piece.slice(at));
  };
  let position = 0;
  for (const match of text.matchAll(INVISIBLE)) {
    if (match.index > position) plain(text.slice(position, match.index));
    fragment.append(make("span", { className: "control" }, spellOut(match[0])));
    position = match.index + match[0].length;
  }
  if (position < text.length) plain(text.slice(position));
  return fragment;
}

const group3 = new Intl.NumberFormat("en-US");
const whole = (value) => group3.format(value);
const counted = (value, what) => `${whole(value)} ${what}${value === 1 ? "" : "s"}`;

/** A number with as many digits as it deserves. */
function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1);
  return String(Number(value.toPrecision(size >= 1000 ? 6 : 3)));
}

// The browser of groups: filters, order, search, and a list that holds only what can be seen.

const PREVIEW_CHARACTERS = 600;
const PREVIEW_LINES = 12;
const COMPLETIONS_AT_ONCE = 16;
const PRINTED_GROUPS = 4;
const SLICE_MS = 8;

/** base64 of gzip of JSON. */
async function unpack(packed) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser cannot unpack the groups; one of 2023 or later can");
  }
  const binary = atob(packed.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const FILTERS = {
  all: { name: "All", test: () => true },
  spread: { name: "With spread", test: (g) => g.kind === "informative" },
  wrong: { name: "All wrong", test: (g) => g.scored > 0 && g.right === 0 },
  right: { name: "All right", test: (g) => g.scored > 0 && g.right === g.scored },
  truncated: { name: "Truncated", test: (g) => g.truncated > 0 },
  unscored: { name: "Unscored", test: (g) => g.scored < g.size },
};

const ORDERS = {
  steps: { name: "first step first", value: null },
  latest: { name: "last step first", value: (g) => g.step },
  surprise: { name: "most surprising", value: (g) => g.surprise, hit: (data, i) => data.surprise[i] },
  advantage: { name: "highest |advantage|", value: (g) => g.advantage, hit: (data, i) => Math.abs(data.advantage[i] || 0) },
};

/** One object a group: where its completions stand, and what filters and orders look at. */
function summarise(data) {
  let start = 0;
  const groups = [];
  for (let g = 0; g < data.groups; g += 1) {
    const group = {
      g, start, size: data.size[g], step: data.step[g], id: data.id[g], kind: data.kind[g], key: data.key[g],
      scored: 0, right: 0, truncated: 0, surprise: 0, advantage: 0,
    };
    for (let i = start; i < start + group.size; i += 1) {
      if (data.right[i] !== null) { group.scored += 1; group.right += data.right[i]; }
      if (data.ended[i] === "length") group.truncated += 1;
      group.surprise = Math.max(group.surprise, data.surprise[i] || 0);
      group.advantage = Math.max(group.advantage, Math.abs(data.advantage[i] || 0));
    }
    start += group.size;
    groups.push(group);
  }
  return groups;
}

/** Where a long text is cut for a first look. */
function previewLength(text) {
  let cut = text.length > PREVIEW_CHARACTERS * 1.2 ? PREVIEW_CHARACTERS : text.length;
  let at = -1;
  for (let line = 0; line < PREVIEW_LINES; line += 1) {
    at = text.indexOf("\n", at + 1);
    if (at < 0) return cut;
  }
  if (at < cut && text.length > at + 1) cut = at;
  const code = text.charCodeAt(cut - 1);
  return code >= 0xd800 && code < 0xdc00 ? cut - 1 : cut; // not through a pair
}

class Browser {
  constructor(root, data) {
    this.root = root;
    this.state = { filter: "all", order: "steps", query: null, only: null, open: new Set(), more: new Map() };
    this.take(data);
    this.build();
    this.apply();
  }

  take(data) {
    this.data = data;
    this.groups = summarise(data);
    this.without = new Set(data.missing);
    const most = this.groups.reduce((m, g) => Math.max(m, g.advantage), 0);
    this.largest = most || 1;
  }

  /** New data from a run that goes on; filters, order and place stay. */
  renew(data) {
    this.take(data);
    this.counts();
    this.apply({ keepPlace: true });
  }

  build() {
    const { without } = this;
    this.chips = make("div", { className: "chips", role: "group", "aria-label": "Which groups" });
    for (const name of Object.keys(FILTERS)) {
      this.chips.append(make("button", {
        type: "button", className: "chip", "data-filter": name, on: { click: () => this.set({ filter: name }) },
      }));
    }
    const orders = Object.entries(ORDERS).filter(([name]) => !(name === "advantage" && without.has("advantage"))
      && !(name === "surprise" && without.has("reward")));
    const order = make("select", { "aria-label": "Order", "data-order": "" },
      ...orders.map(([name, { name: words }]) => make("option", { value: name }, words)));
    order.addEventListener("change", () => this.set({ order: order.value }));
    const search = make("input", {
      type: "search", placeholder: "Search prompts and completions", "aria-label": "Search", spellcheck: "false",
      autocomplete: "off", "data-search": "",
    });
    let waiting;
    search.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.set({ query: search.value.trim() || null }), 150);
    });
    this.only = make("button", { type: "button", className: "chip only", hidden: "", on: { click: () => this.set({ only: null }) } });
    this.status = make("p", { className: "muted count", role: "status", "data-count": "" });
    this.hint = make("p", { className: "muted hint", hidden: "" });
    const scroller = make("div", { className: "scroller", role: "feed", tabindex: "0", "aria-label": "Groups" });
    this.printed = make("div", { className: "printed" });
    this.root.replaceChildren(
      make("div", { className: "controls" }, this.chips,
        make("div", { className: "tools" }, search, make("label", { className: "order" }, make("span", { className: "muted" }, "order"), order))),
      make("div", { className: "line" }, this.status, this.only), this.hint, scroller, this.printed);
    this.list = new VirtualList(scroller, { estimate: (g) => this.estimate(g), render: (g) => this.group(g) });
    this.counts();
    const preparePrint = () => this.printed.replaceChildren(...this.printout());
    window.addEventListener("beforeprint", preparePrint);
    window.addEventListener("afterprint", () => this.printed.replaceChildren());
    window.matchMedia("print").addEventListener("change", (event) => {
      if (event.matches) preparePrint(); else this.printed.replaceChildren();
    });
  }

  counts() {
    for (const chip of this.chips.children) {
      const { name, test } = FILTERS[chip.dataset.filter];
      const count = this.groups.reduce((sum, group) => sum + (test(group) ? 1 : 0), 0);
      chip.replaceChildren(name, make("span", { className: "number" }, whole(count)));
      const useless = count === 0 && chip.dataset.filter !== "all";
      chip.hidden = useless && (chip.dataset.filter === "unscored" || this.without.has("reward")
        || (chip.dataset.filter === "truncated" && this.without.has("finish_reason")));
      chip.disabled = useless && this.state.filter !== chip.dataset.filter;
    }
  }

  set(change) {
    Object.assign(this.state, change);
    this.apply();
  }

  /** Filter, order and search; searching goes in slices so that typing and scrolling stay fluid. */
  async apply({ keepPlace = false } = {}) {
    const turn = this.turn = {};
    const { filter, order, query, only } = this.state;
    for (const chip of this.chips.children) chip.setAttribute("aria-pressed", chip.dataset.filter === filter);
    this.only.hidden = !only;
    if (only) this.only.replaceChildren(inert(`${only.name.slice(-60)} · step ${only.label}`), make("span", { className: "number" }, "✕"));
    let found = this.groups.filter(FILTERS[filter].test);
    if (only) found = found.filter((g) => g.key === only.key && g.step >= only.steps[0] && g.step <= only.steps[1]);
    this.pattern = query && new RegExp(query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
    if (query) {
      found = await this.search(found, new RegExp(this.pattern.source, "i"), turn);
      if (!found) return;
    }
    const { value } = ORDERS[order];
    if (value) found = [...found].sort((a, b) => value(b) - value(a) || a.g - b.g);
    this.found = found;
    const completions = found.reduce((sum, group) => sum + group.size, 0);
    this.status.textContent = found.length
      ? `${counted(found.length, "group")}, ${counted(completions, "completion")}`
      : "No group is like that.";
    this.hint.hidden = order !== "surprise";
    this.hint.textContent = "Surprise is −log₂ of the share of the prompt’s completions, over all its draws, that came out "
      + "the same way, right or wrong: one right among 64 has 6 bits.";
    this.list.show(found.map((group) => group.g), { keepPlace });
  }

  async search(groups, pattern, turn) {
    const { data } = this;
    const found = [];
    let pause = performance.now() + SLICE_MS;
    const prompts = new Map();
    const inPrompt = (number) => {
      if (!prompts.has(number)) prompts.set(number, pattern.test(data.prompts[number] || ""));
      return prompts.get(number);
    };
    for (const group of groups) {
      let hit = pattern.test(group.id) || inPrompt(data.prompt[group.g]);
      for (let i = group.start; !hit && i < group.start + group.size; i += 1) hit = pattern.test(data.text[i] || "");
      if (hit) found.push(group);
      if (performance.now() > pause) {
        this.status.textContent = `Searching… ${counted(found.length, "group")} so far`;
        await new Promise((resolve) => { setTimeout(resolve); });
        if (this.turn !== turn) return null;
        pause = performance.now() + SLICE_MS;
      }
    }
    return found;
  }

  /** The group's completions in the order to show them: those that the order asks for first. */
  members(group) {
    const { hit } = ORDERS[this.state.order];
    const indices = Array.from({ length: group.size }, (_, k) => group.start + k);
    const score = hit && ((i) => hit(this.data, i) || 0);
    return hit ? indices.sort((a, b) => score(b) - score(a) || a - b) : indices;
  }

  estimate(g) {
    const group = this.groups[g], width = Math.max((this.list ? this.list.scroller.clientWidth : 800) - 200, 200) / 7.6;
    const shown = Math.min(group.size, this.state.more.get(g) || COMPLETIONS_AT_ONCE);
    let height = 96 + 22 * Math.min((this.data.prompts[this.data.prompt[g]] || "").length / width, 12);
    for (let i = group.start; i < group.start + shown; i += 1) {
      height += Math.max(92, 40 + 21 * Math.ceil(Math.min((this.data.text[i] || "").length, PREVIEW_CHARACTERS) / width));
    }
    return height;
  }

  group(g, { complete = true } = {}) {
    const { data } = this, group = this.groups[g];
    const facts = [`step ${whole(group.step)}`, `group ${group.id}`];
    if (group.scored) facts.push(`${group.right} of ${group.scored} right`);
    if (group.truncated) facts.push(`${group.truncated} truncated`);
    const members = this.members(group);
    const limit = this.state.more.get(g) || COMPLETIONS_AT_ONCE;
    const note = make("p", { className: "note" });
    note.append(inert(facts.join(" · ")), " ", this.remark(group));
    const prompt = data.prompts[data.prompt[g]];
    const node = make("article", { className: "group", "data-group": g },
      make("header", {}, note, prompt === null || prompt === undefined
        ? make("p", { className: "empty" }, "no prompt on record") : this.text(prompt, `p${g}`, g, true)),
      ...members.slice(0, limit).map((i) => this.completion(i, g)));
    const more = members.length - limit;
    if (more > 0) {
      node.append(make("div", { className: "rest" }, complete
        ? make("button", { type: "button", className: "link", on: { click: () => {
          this.state.more.set(g, limit + 4 * COMPLETIONS_AT_ONCE);
          this.list.refresh(g);
        } } }, `${counted(more, "more completion")}`)
        : `and ${counted(more, "more completion")}`));
    }
    return node;
  }

  /** Why nothing was learned from a group; nothing where something was. */
  remark(group) {
    if (!this.data.used[group.g]) {
      const reason = { all_high: "all high", all_low: "all low", single: "one scored", unscored: "unscored" }[this.data.dropped[group.g]];
      return make("span", { className: "tag" }, `not trained on${reason ? `: ${reason}` : ""}`);
    }
    if (this.without.has("advantage") || group.advantage > 0) return "";
    const words = group.kind === "informative" ? "every advantage is 0"
      : group.kind === "unscored" ? "unscored" : group.kind === "single" ? "one scored: advantage 0"
        : "no spread: every advantage is 0";
    return make("span", { className: "tag" }, words);
  }

  completion(i, g) {
    const { data } = this;
    const reward = data.reward[i], advantage = data.advantage[i], tokens = data.tokens[i];
    const right = data.right[i] === 1;
    const line = (label, value, className = "") => make("div", { className: "row" },
      make("span", { className: "muted" }, label), make("span", { className }, value));
    const score = make("div", { className: "score" },
      reward === null ? make("div", { className: "row" }, make("span", { className: "muted" }, "unscored"))
        : line("reward", `${right ? "✓" : "✗"} ${short(reward)}`, right ? "up-text" : "down-text"));
    const components = Object.entries(data.components);
    if (components.length) {
      score.append(make("div", { className: "parts" }, ...components.map(([name, values]) => {
        const label = make("span", { className: "muted" });
        label.append(inert(name));
        return make("div", { className: "row" }, label, make("span", {}, short(values[i])));
      })));
    }
    if (advantage !== null) {
      const sign = advantage > 0 ? "up" : advantage < 0 ? "down" : "";
      const bar = make("span", { className: sign });
      bar.style.width = `${(50 * Math.min(Math.abs(advantage) / this.largest, 1)).toFixed(1)}%`;
      score.append(line("advantage", advantage ? `${advantage > 0 ? "+" : "−"}${short(Math.abs(advantage))}` : "0", sign && `${sign}-text`),
        make("div", { className: "bar" }, bar));
    }
    if (this.state.order === "surprise" && data.surprise[i] !== null) score.append(line("surprise", `${data.surprise[i].toFixed(2)} bits`));
    const ended = { stop: "finished", length: "truncated" }[data.ended[i]] || "";
    if (ended || tokens !== null) {
      score.append(make("div", { className: "row" }, make("span", { className: ended === "truncated" ? "down-text" : "muted" }, ended),
        make("span", { className: "muted" }, tokens === null ? "" : counted(tokens, "token"))));
    }
    const text = data.text[i];
    const body = text === null ? make("p", { className: "empty" }, "no text on record")
      : text.trim() === "" ? make("p", { className: "empty" }, text ? "only whitespace" : "empty")
        : this.text(text, `c${i}`, g, false);
    const cut = data.cut[i];
    if (cut) body.append(make("p", { className: "muted" }, `and ${counted(cut, "more character")} in the records`));
    return make("div", { className: "completion", "data-completion": i }, score, body);
  }

  /** A text, cut for a first look; a prompt shows its end, where the question stands. */
  text(text, name, g, fromEnd) {
    const open = this.state.open.has(name);
    const length = fromEnd ? (text.length > PREVIEW_CHARACTERS * 1.2 ? PREVIEW_CHARACTERS : text.length) : previewLength(text);
    const hidden = text.length - length;
    const shown = open || !hidden ? text : fromEnd ? text.slice(-length) : text.slice(0, length);
    const words = make("p", { className: "text", dir: "auto" });
    words.append(inert(shown, this.pattern));
    const box = make("div", { className: "words" }, words);
    if (hidden > 0) {
      const toggle = make("button", { type: "button", className: "link", "aria-expanded": open, on: { click: () => {
        if (open) this.state.open.delete(name); else this.state.open.add(name);
        this.list.refresh(g);
      } } }, open ? "show less" : `${whole(hidden)} ${fromEnd ? "characters before this" : "more characters"}`);
      if (fromEnd) box.prepend(toggle); else box.append(toggle);
    }
    return box;
  }

  /** On paper: the first groups of what is chosen. */
  printout() {
    const shown = this.found.slice(0, PRINTED_GROUPS);
    const left = this.found.length - shown.length;
    return [...shown.map((group) => this.group(group.g, { complete: false })),
      left > 0 ? make("p", { className: "muted" }, `and ${counted(left, "more group")}, in the page itself`) : ""];
  }
}

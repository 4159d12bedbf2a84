// A list of which only what can be seen is in the document. Heights differ and are measured as items are shown;
// until then they are estimated. A Fenwick tree keeps the sums, so that finding a place takes log(n).

class Heights {
  constructor(estimates) {
    this.size = estimates.length;
    this.values = Float64Array.from(estimates);
    this.sums = new Float64Array(this.size + 1);
    for (let i = 1; i <= this.size; i += 1) {
      this.sums[i] += this.values[i - 1];
      const parent = i + (i & -i);
      if (parent <= this.size) this.sums[parent] += this.sums[i];
    }
    this.top = 1;
    while (this.top * 2 <= this.size) this.top *= 2;
  }

  set(index, value) {
    const change = value - this.values[index];
    this.values[index] = value;
    for (let i = index + 1; i <= this.size; i += i & -i) this.sums[i] += change;
    return change;
  }

  /** Sum of the heights before the item. */
  before(index) {
    let sum = 0;
    for (let i = index; i > 0; i -= i & -i) sum += this.sums[i];
    return sum;
  }

  /** The item that stands at that height. */
  at(height) {
    let index = 0, left = height;
    for (let step = this.top; step > 0; step >>= 1) {
      if (index + step <= this.size && this.sums[index + step] <= left) {
        index += step;
        left -= this.sums[index];
      }
    }
    return Math.min(index, this.size - 1);
  }
}

class VirtualList {
  /** estimate(id) gives a height in pixels, render(id, position) the element. */
  constructor(scroller, { estimate, render }) {
    Object.assign(this, { scroller, estimate, render, ids: [], shown: new Map() });
    this.sheet = make("div", { className: "sheet" });
    scroller.replaceChildren(this.sheet);
    this.observer = new ResizeObserver(() => this.soon());
    this.observer.observe(scroller);
    scroller.addEventListener("scroll", () => this.soon(), { passive: true });
    this.heights = new Heights([]);
  }

  /** Show these items. */
  show(ids, { keepPlace = false } = {}) {
    const top = this.scroller.scrollTop;
    const anchor = keepPlace && this.ids.length ? this.heights.at(top) : null;
    const kept = anchor === null ? null : { id: this.ids[anchor], offset: top - this.heights.before(anchor) };
    this.ids = ids;
    this.heights = new Heights(ids.map(this.estimate));
    this.forget();
    const place = kept ? ids.indexOf(kept.id) : -1;
    this.sheet.style.height = `${this.heights.before(ids.length)}px`;
    this.scroller.scrollTop = place >= 0 ? this.heights.before(place) + kept.offset : keepPlace ? top : 0;
    this.update();
  }

  /** Make an item's element anew where it is shown. */
  refresh(id) {
    const index = this.ids.indexOf(id), old = this.shown.get(index);
    if (!old) return;
    const fresh = this.place(index);
    old.replaceWith(fresh);
    this.observer.unobserve(old);
    this.update();
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.update(); });
  }

  update() {
    for (let round = 0; round < 4 && this.lay(); round += 1);
  }

  /** Put what can be seen into the document and measure it; whether that moved anything. */
  lay() {
    const { scroller, heights, ids, shown } = this;
    if (!ids.length) { this.forget(); this.sheet.style.height = "0px"; return false; }
    const beyond = scroller.clientHeight / 2;
    const first = heights.at(Math.max(scroller.scrollTop - beyond, 0));
    const last = heights.at(scroller.scrollTop + scroller.clientHeight + beyond);
    for (const [index, node] of shown) {
      if ((index < first || index > last) && !node.contains(document.activeElement)) {
        this.observer.unobserve(node);
        node.remove();
        shown.delete(index);
      }
    }
    for (let index = first; index <= last; index += 1) {
      if (!shown.has(index)) this.sheet.append(this.place(index));
    }
    let moved = false, above = 0;
    const top = scroller.scrollTop;
    for (const [index, node] of shown) {
      const height = node.offsetHeight;
      if (Math.abs(height - heights.values[index]) > 0.5) {
        if (heights.before(index) + heights.values[index] <= top) above += height - heights.values[index];
        heights.set(index, height);
        moved = true;
      }
    }
    this.sheet.style.height = `${heights.before(ids.length)}px`;
    for (const [index, node] of shown) node.style.transform = `translateY(${heights.before(index)}px)`;
    if (above) scroller.scrollTop = top + above; // what is read stays where it is
    return moved;
  }

  place(index) {
    const node = this.render(this.ids[index], index);
    node.setAttribute("aria-posinset", index + 1);
    node.setAttribute("aria-setsize", this.ids.length);
    this.shown.set(index, node);
    this.observer.observe(node);
    return node;
  }

  forget() {
    for (const node of this.shown.values()) { this.observer.unobserve(node); node.remove(); }
    this.shown.clear();
  }
}

// What switching heads off does to words, as DOM: `words` (a table of next words with bars) and `strip` (tokens with a number).
//
// Contract with Python (mha_core/ui/effects.py): `data` is JSON, `data.kind` says which. Streamlit calls the default export
// again for every new message and when the theme changes, always with the same parentElement: rows and tokens are reused.
// Words and labels are untrusted: textContent and setAttribute only. After each paint the root carries data-painted (a
// counter) and data-view (data.id), for tests.

const LOOKS = new WeakMap(); // parentElement -> Effects

export default function (component) {
  const { parentElement } = component;
  let look = LOOKS.get(parentElement);
  if (!look) {
    look = new Effects(parentElement);
    LOOKS.set(parentElement, look);
  }
  const generation = look.update(component);
  return () => {
    // Streamlit may run the clean-up of an overtaken call after the next call: only the newest one may take down.
    if (look.generation !== generation) return;
    look.destroy();
    LOOKS.delete(parentElement);
  };
}

// ------------------------------------------------------------------------------------------------ small DOM helpers

function make(tag, className, parent, attributes) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  if (parent) parent.appendChild(element);
  return element;
}

/** Text and attributes are only touched when they change: what a person has marked stays marked. */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function attribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/** Line breaks and tabs as signs: a word is one line. */
const oneLine = (text) => text.replace(/\r\n?|\n/g, "↵").replace(/\t/g, "⇥");

// ----------------------------------------------------------------------------------------------- numbers and colours

const minus = (text) => text.replace(/-/g, "−");

/** At most six significant digits: what the tooltips call exact. */
const exact = (value) => minus(String(Number(value.toPrecision(6))));

/** Decimals that show the scale's largest value with two digits; -1: so small that powers of ten are shorter. */
function decimalsFor(limit) {
  if (limit >= 1000) return 0;
  if (limit >= 1) return 1;
  return limit < 0.001 ? -1 : 1 - Math.floor(Math.log10(limit));
}

function short(value, decimals, signed) {
  if (value === 0) return "0";
  const text = decimals < 0 ? value.toExponential(1) : value.toFixed(decimals);
  if (Number(text) === 0) return (0).toFixed(decimals); // neither +0.0 nor −0.0
  return (signed && value > 0 ? "+" : "") + minus(text);
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

/** The colour at 0..1 along a list of hex colours, as [r, g, b]. */
function along(colours, share) {
  const at = Math.max(0, Math.min(1, share)) * (colours.length - 1);
  const low = Math.min(Math.floor(at), colours.length - 2);
  const [a, b] = [rgb(colours[low]), rgb(colours[low + 1])];
  return a.map((c, k) => Math.round(c + (b[k] - c) * (at - low)));
}

/** Relative luminance as the accessibility guidelines define it. */
function luminance(channels) {
  const [r, g, b] = channels.map((c) => (c <= 10.31 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(a, b) {
  const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (light + 0.05) / (dark + 0.05);
}

/** The page's own ink where it can be read on this fill (4.5 to 1), else black or white: one of them always can. */
function inkOn(fill, ink) {
  if (contrast(fill, ink) >= 4.5) return ink;
  const [black, white] = [[0, 0, 0], [255, 255, 255]];
  return contrast(fill, black) > contrast(fill, white) ? black : white;
}

const css = (channels) => `rgb(${channels.join(" ")})`;
const channelsOf = (colour) => (colour.match(/[\d.]+/g) || [255, 255, 255]).slice(0, 3).map(Number);

// ------------------------------------------------------------------------------------------------------ the component

class Effects {
  constructor(parent) {
    for (const old of Array.from(parent.children)) if (old.classList.contains("fx")) old.remove();
    this.root = make("div", "fx", parent);
    this.probe = make("span", "fx-probe", this.root, { "aria-hidden": "true" });
    this.stage = make("div", "fx-stage", this.root);
    this.tip = make("div", "fx-tip", this.root, { "aria-hidden": "true" });
    this.generation = 0;
    this.painted = 0;
    this.resize = new ResizeObserver(() => this.hideTip());
    this.resize.observe(this.root);
  }

  destroy() {
    this.resize.disconnect();
    this.root.remove();
  }

  update(component) {
    this.generation += 1;
    this.component = component;
    const { data } = component;
    const theme = this.readTheme();
    const text = JSON.stringify(data);
    // A rerun resends the same data; repainting then would only cost time and drop the tooltip.
    if (text === this.text && theme === this.themeKey) return this.generation;
    this.text = text;
    this.themeKey = theme;
    if (data) this.draw(data);
    return this.generation;
  }

  readTheme() {
    const style = getComputedStyle(this.probe);
    const page = channelsOf(style.backgroundColor);
    this.theme = (0.2126 * page[0] + 0.7152 * page[1] + 0.0722 * page[2]) / 255 < 0.45 ? "dark" : "light";
    this.ink = channelsOf(style.color);
    this.root.dataset.theme = this.theme;
    return `${style.backgroundColor} ${style.color}`;
  }

  draw(data) {
    if (!this.painter || this.painter.kind !== data.kind) {
      this.stage.textContent = "";
      const Painter = { words: NextWords, strip: TokenStrip }[data.kind];
      this.painter = Painter ? new Painter(this) : null;
      if (!this.painter) this.stage.textContent = `“${data.kind}” cannot be drawn here.`;
    }
    this.hideTip();
    if (this.painter) this.painter.draw(data);
    this.painted += 1;
    this.root.dataset.painted = String(this.painted);
    this.root.dataset.view = data.id === undefined ? "" : String(data.id);
  }

  /** The tooltip above an element, or below it where there is no room above; `fill` puts text into it. */
  showTip(element, fill) {
    this.tip.textContent = "";
    fill(this.tip);
    this.tip.dataset.shown = "true";
    const box = this.root.getBoundingClientRect();
    const at = element.getBoundingClientRect();
    const { offsetWidth: w, offsetHeight: h } = this.tip;
    const left = Math.max(0, Math.min(at.left - box.left + at.width / 2 - w / 2, box.width - w));
    const above = at.top - box.top - h - 6;
    this.tip.style.transform = `translate(${left}px, ${above > -24 ? above : at.bottom - box.top + 6}px)`;
  }

  hideTip() {
    delete this.tip.dataset.shown;
  }
}

// -------------------------------------------------------------------------- words: probabilities of the next word

class NextWords {
  constructor(look) {
    this.kind = "words";
    this.look = look;
    this.table = make("table", "fx-words", look.stage);
    // An element inside the caption is hidden, not the caption: it must stay a caption to name the table.
    this.caption = make("span", "fx-sr", make("caption", "", this.table));
    this.columns = make("colgroup", "", this.table);
    this.head = make("tr", "", make("thead", "", this.table));
    this.body = make("tbody", "", this.table);
    const foot = make("tr", "", make("tfoot", "", this.table));
    this.scale = make("td", "", foot);
    this.scale.textContent = "probability, 0 to 1";
    const ticks = make("div", "fx-ticks", make("td", "fx-axis", foot), { "aria-hidden": "true" });
    for (const tick of ["0", "0.5", "1"]) {
      const mark = make("span", "", ticks);
      mark.textContent = tick;
      mark.style.setProperty("--fx-at", `${Number(tick) * 100}%`);
    }
    this.rows = new Map(); // word, with a count where a word comes twice -> row
  }

  /** Header and columns, made again only when their number changes. */
  frame(count) {
    if (this.count === count) return;
    this.count = count;
    for (const part of [this.columns, this.head, this.body]) part.textContent = "";
    this.rows.clear();
    make("col", "fx-col-word", this.columns);
    make("th", "", this.head, { scope: "col" }).textContent = "word";
    this.titles = [];
    for (let i = 0; i < count; i++) {
      make("col", "fx-col-number", this.columns);
      const cell = make("th", "", this.head, { scope: "col" });
      this.titles.push({ swatch: make("span", "fx-swatch", cell, { "aria-hidden": "true" }), name: make("bdi", "", cell) });
    }
    make("col", "", this.columns);
    make("span", "fx-sr", make("th", "fx-bars", this.head, { scope: "col" })).textContent = "the same as bars";
    this.scale.colSpan = count + 1;
  }

  draw(data) {
    const { columns, rows } = data;
    this.frame(columns.length);
    const colours = data.series[this.look.theme];
    colours.forEach((colour, i) => this.table.style.setProperty(`--fx-series-${i}`, colour));
    write(this.caption, data.alt);
    columns.forEach(({ name, style }, i) => {
      write(this.titles[i].name, oneLine(name));
      this.paint(this.titles[i].swatch, style);
    });
    const longest = rows.reduce((most, { word, note }) => Math.max(most, Array.from(word).length + 0.9 * note.length), 4);
    this.table.style.setProperty("--fx-longest", String(longest));
    this.place(rows);
    rows.forEach((row, i) => this.fill(this.shown[i], row, columns));
  }

  paint(element, style) {
    attribute(element, "data-style", style);
    element.style.setProperty("--fx-colour", `var(--fx-series-${style})`);
  }

  /** A word that was shown keeps its row, so that its bars move from the old value to the new; spare rows are taken over. */
  place(rows) {
    const seen = new Map();
    const keys = rows.map(({ word }) => {
      const count = (seen.get(word) || 0) + 1;
      seen.set(word, count);
      return `${count} ${word}`;
    });
    const kept = new Set(keys);
    const spare = [...this.rows].filter(([key]) => !kept.has(key)).map(([, row]) => row);
    const next = new Map(keys.map((key) => [key, this.rows.get(key)]));
    for (const key of keys) if (!next.get(key)) next.set(key, spare.shift() || this.row());
    for (const row of spare) row.element.remove();
    this.rows = next;
    this.shown = [...next.values()];
    this.shown.forEach(({ element }, i) => {
      if (this.body.children[i] !== element) this.body.insertBefore(element, this.body.children[i] || null);
    });
  }

  row() {
    const element = make("tr", "");
    const header = make("th", "fx-word", element, { scope: "row" });
    const pair = make("span", "fx-pair", header);
    make("span", "fx-mark", pair).textContent = "“";
    const word = make("bdi", "", pair, { dir: "auto" });
    make("span", "fx-mark", pair).textContent = "”";
    header.append(" ");
    const note = make("span", "fx-note", header, { dir: "auto" });
    const numbers = Array.from({ length: this.count }, () => make("td", "fx-number", element));
    const scale = make("div", "fx-scale", make("td", "fx-bars", element), { "aria-hidden": "true" });
    const bars = Array.from({ length: this.count }, () => make("div", "fx-bar", scale));
    return { element, word, note, numbers, bars };
  }

  fill(row, { word, values, note }, columns) {
    write(row.word, oneLine(word));
    attribute(row.word, "title", `“${word}”`);
    write(row.note, oneLine(note));
    values.forEach((value, i) => {
      const known = typeof value === "number";
      const small = known && value > 0 && value < 0.001;
      write(row.numbers[i], known ? (small ? "<0.001" : minus(value.toFixed(3))) : "–");
      attribute(row.numbers[i], "title", known ? `${columns[i].name}: ${exact(value)}` : null);
      attribute(row.numbers[i], "data-small", small || !known ? "" : null);
      const bar = row.bars[i];
      this.paint(bar, columns[i].style);
      bar.style.width = `${known ? Math.max(0, Math.min(1, value)) * 100 : 0}%`;
      attribute(bar, "data-some", known && value > 0 ? "" : null);
      attribute(bar, "hidden", known ? null : "");
    });
  }
}

// ------------------------------------------------------------------------------------ strip: tokens with a number each

const MANY = 600; // more tokens than this scroll in a box of their own

class TokenStrip {
  constructor(look) {
    this.kind = "strip";
    this.look = look;
    this.scroll = make("div", "fx-scroll", look.stage);
    this.list = make("div", "fx-strip", this.scroll, { role: "list" });
    this.legend = make("div", "fx-legend", look.stage);
    this.low = make("span", "", this.legend);
    this.ramp = make("span", "fx-ramp", this.legend, { "aria-hidden": "true" });
    this.high = make("span", "", this.legend);
    this.unit = make("bdi", "fx-unit", this.legend, { dir: "auto" });
    this.tokens = [];
    this.focused = 0; // roving tabindex
    this.listen();
  }

  listen() {
    const { list, look } = this;
    list.addEventListener("pointerover", (event) => {
      const at = this.find(event.target);
      if (at === null) look.hideTip();
      else this.tell(at);
    });
    list.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") look.hideTip();
    });
    list.addEventListener("focusin", (event) => {
      const at = this.find(event.target);
      if (at === null) return;
      this.rove(at);
      if (event.target.matches(":focus-visible")) this.tell(at);
    });
    list.addEventListener("focusout", () => look.hideTip());
    list.addEventListener("click", (event) => {
      const at = this.find(event.target);
      if (at === null) return;
      this.tell(at); // a finger cannot hover
      if (this.data.selectable) this.select(at);
    });
    list.addEventListener("keydown", (event) => this.key(event));
    this.scroll.addEventListener("scroll", () => look.hideTip(), { passive: true });
  }

  find(target) {
    const element = target && target.closest ? target.closest("[data-at]") : null;
    return element ? Number(element.dataset.at) : null;
  }

  draw(data) {
    const { labels, selectable } = data;
    if (this.selectable !== selectable) {
      this.selectable = selectable;
      this.list.textContent = "";
      this.tokens = [];
    }
    this.data = data;
    this.signed = data.fmt === "signed";
    this.decimals = decimalsFor(data.limit);
    const many = labels.length > MANY;
    attribute(this.list, "data-many", many ? "" : null);
    attribute(this.list, "aria-label", data.alt);
    attribute(this.scroll, "data-many", many ? "" : null);
    // What scrolls must be reachable by keyboard; tokens that are buttons already are.
    attribute(this.scroll, "tabindex", many && !selectable ? "0" : null);
    attribute(this.scroll, "role", many && !selectable ? "group" : null);
    attribute(this.scroll, "aria-label", many && !selectable ? data.alt : null);
    while (this.tokens.length > labels.length) this.tokens.pop().item.remove();
    const added = document.createDocumentFragment();
    while (this.tokens.length < labels.length) this.tokens.push(this.token(this.tokens.length, added));
    this.list.appendChild(added);
    const { palette } = data;
    const { theme } = this.look;
    const scale = this.signed ? palette.diverging[theme] : palette[theme];
    this.look.root.style.setProperty("--fx-selected", palette.selected[theme]);
    const fills = new Map(); // 256 colours are enough, and quicker than one computation a token
    this.fillOf = (value) => {
      const share = this.signed ? (value / data.limit + 1) / 2 : value / data.limit;
      const step = Math.round(Math.max(0, Math.min(1, share)) * 256);
      if (!fills.has(step)) {
        const fill = along(scale, step / 256);
        fills.set(step, { fill: css(fill), ink: css(inkOn(fill, this.look.ink)) });
      }
      return fills.get(step);
    };
    labels.forEach((label, at) => this.fill(this.tokens[at], label, at));
    if (many && data.selected !== null && data.selected !== this.marked) this.reveal(data.selected);
    this.mark(data.selected);
    if (selectable && labels.length) this.rove(Math.min(data.selected ?? this.focused, labels.length - 1));
    this.explain(scale);
  }

  token(at, parent) {
    const item = make("div", this.selectable ? "fx-slot" : "fx-token", parent, { role: "listitem" });
    const box = this.selectable ? make("button", "fx-token", item, { type: "button", tabindex: "-1" }) : item;
    box.dataset.at = String(at);
    return { item, box, label: make("span", "fx-label", box, { dir: "auto" }), value: make("span", "fx-value", box) };
  }

  fill({ box, label, value: number }, text, at) {
    const value = this.data.values[at];
    const known = typeof value === "number";
    const shown = known ? short(value, this.decimals, this.signed) : "";
    write(label, oneLine(text));
    write(number, shown);
    const reading = known ? `${shown} ${this.data.unit}`.trim() : "no value";
    attribute(box, "aria-label", `position ${at}, ${text}, ${reading}`);
    attribute(box, "aria-description", this.hover(at) || null);
    attribute(box, "data-value", known ? "" : null);
    attribute(box, "data-plain", known ? null : "");
    const look = known ? this.fillOf(value) : null;
    const style = look ? `--fx-fill:${look.fill};--fx-on:${look.ink}` : null;
    attribute(box, "style", style);
  }

  hover(at) {
    return (this.data.hovers && this.data.hovers[at]) || "";
  }

  /** The ends of the scale; where values go beyond them, the ends say so. */
  explain(scale) {
    const { data, decimals, signed } = this;
    const known = data.values.filter((value) => typeof value === "number");
    const over = known.some((value) => value > data.limit * (1 + 1e-9));
    const under = known.some((value) => value < (signed ? -data.limit * (1 + 1e-9) : 0));
    const end = (value) => short(value, decimals, signed);
    write(this.low, (under ? "≤ " : "") + end(signed ? -data.limit : 0));
    write(this.high, (over ? "≥ " : "") + end(data.limit));
    write(this.unit, data.unit);
    this.ramp.style.background = `linear-gradient(to right, ${scale.join(", ")})`;
    this.legend.hidden = !known.length;
  }

  /** “Mary” · position 3 · +2.61235 nats, below the page's own words about it. */
  tell(at) {
    const { data } = this;
    const value = data.values[at];
    this.look.showTip(this.tokens[at].box, (tip) => {
      if (this.hover(at)) make("div", "", tip, { dir: "auto" }).textContent = this.hover(at);
      const line = make("div", "", tip);
      line.append("“");
      make("bdi", "", line, { dir: "auto" }).textContent = data.labels[at];
      line.append(`” · position ${at} · `);
      const sign = this.signed && value > 0 ? "+" : "";
      line.append(typeof value === "number" ? `${sign}${exact(value)} ${data.unit}`.trim() : "no value");
    });
  }

  mark(selected) {
    const old = this.tokens[this.marked];
    if (old) old.box.removeAttribute("aria-current");
    this.marked = selected;
    const now = this.tokens[selected];
    if (now) now.box.setAttribute("aria-current", "true");
  }

  /** Scroll the box, never the page, to a token that was chosen elsewhere. */
  reveal(at) {
    const box = this.scroll.getBoundingClientRect();
    const { top, bottom } = this.tokens[at].box.getBoundingClientRect();
    if (top < box.top || bottom > box.bottom) this.scroll.scrollTop += top - box.top - box.height / 2;
  }

  select(at) {
    this.mark(at); // at once; Python's answer comes with the next data, which always differ (data.answer)
    this.look.component.setTriggerValue("select", { position: at });
  }

  rove(at) {
    const old = this.tokens[this.focused];
    if (old) attribute(old.box, "tabindex", this.selectable ? "-1" : null);
    this.focused = at;
    if (this.selectable) attribute(this.tokens[at].box, "tabindex", "0");
  }

  /** The token of the line above (-1) or below (1) that stands nearest; the same token at the first and last line. */
  nextLine(at, direction) {
    const place = (i) => {
      const box = this.tokens[i].box.getBoundingClientRect();
      return { top: box.top, middle: box.left + box.width / 2 };
    };
    const from = place(at);
    let best = at;
    let line = null;
    let least = Infinity;
    for (let i = at + direction; i >= 0 && i < this.tokens.length; i += direction) {
      const { top, middle } = place(i);
      if (Math.abs(top - from.top) < 2) continue;
      if (line === null) line = top;
      if (Math.abs(top - line) >= 2) break;
      if (Math.abs(middle - from.middle) < least) [best, least] = [i, Math.abs(middle - from.middle)];
    }
    return best;
  }

  key(event) {
    const at = this.find(event.target);
    if (event.key === "Escape") this.look.hideTip();
    if (at === null || !this.selectable || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.tokens.length - 1;
    const next = {
      ArrowRight: () => Math.min(last, at + 1),
      ArrowLeft: () => Math.max(0, at - 1),
      ArrowDown: () => this.nextLine(at, 1),
      ArrowUp: () => this.nextLine(at, -1),
      Home: () => 0,
      End: () => last,
    }[event.key];
    if (!next) return; // Enter and Space press the button by themselves
    this.tokens[next()].box.focus();
    event.preventDefault();
    event.stopPropagation();
  }
}

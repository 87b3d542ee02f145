// Matrices of a calculation as tables: lines of them with signs between, coloured by value, some to be changed in place.
//
// A changed number goes to Python as a trigger, with every other change that no answer contains yet: a trigger that is
// lost while the page is redrawn is said again with the next one, or after a while. `ack` of the data is the newest
// change that the numbers shown contain. A cell that somebody is typing in is never overwritten.

const DRAWN = new WeakMap(); // parentElement -> Matrices
const TYPING = 350; // ms without a key before a number that can be read is taken
const PATIENCE = 2500; // ms without an answer before a change is said again
const REMINDERS = 4;
const MOST_COLUMNS = 16; // more are drawn as colours without numbers
const MOST_ROWS = 20;
const STEP = 0.1; // what an arrow key adds

export default function (component) {
  const { parentElement } = component;
  let drawn = DRAWN.get(parentElement);
  if (!drawn) {
    drawn = new Matrices(parentElement);
    DRAWN.set(parentElement, drawn);
  }
  drawn.update(component);
  // Streamlit cleans up before or after the next call, as it comes: nothing is taken down here, what is kept goes with
  // parentElement, and a timer that finds its table gone does nothing.
  return () => {};
}

function make(tag, className, parent, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  if (parent) parent.appendChild(element);
  return element;
}

const channelsOf = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

function along(colours, share) {
  const at = Math.max(0, Math.min(1, share)) * (colours.length - 1);
  const low = Math.min(Math.floor(at), colours.length - 2);
  const [a, b] = [channelsOf(colours[low]), channelsOf(colours[low + 1])];
  return a.map((c, k) => Math.round(c + (b[k] - c) * (at - low)));
}

function luminance(channels) {
  const [r, g, b] = channels.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** A number in a cell: short, and the same width for its neighbours. */
function short(value) {
  if (value === null) return "−∞";
  const size = Math.abs(value);
  const text = Number.isInteger(value) && size < 1e5 ? String(value)
    : size >= 1e5 ? value.toExponential(0) : size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
  return text.replace("-", "−");
}

const exact = (value) => (value === null ? "minus infinity" : String(value).replace("-", "−"));

function read(text) {
  const typed = text.trim().replace("−", "-").replace(/^([+-]?\d+),(\d+)$/, "$1.$2");
  return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?$/i.test(typed) ? Number(typed) : NaN;
}

class Matrices {
  constructor(parent) {
    for (const old of Array.from(parent.children)) if (old.classList.contains("mx")) old.remove();
    this.parent = parent;
    this.root = make("div", "mx", parent);
    this.probe = make("span", "mx-probe", this.root);
    this.probe.setAttribute("aria-hidden", "true");
    this.body = make("div", "mx-groups", this.root);
    this.pending = new Map(); // "X.0.1" -> [matrix, row, column, text]
    this.seq = 0;
    this.reminded = 0;
    this.cells = [];
    this.root.addEventListener("input", (event) => this.typed(event.target));
    this.root.addEventListener("change", (event) => this.commit(event.target));
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.root.addEventListener("paste", (event) => this.paste(event));
    this.root.addEventListener("focusin", (event) => event.target.select && event.target.select());
    this.root.addEventListener("focusout", (event) => this.left(event.target));
  }

  update({ data, setTriggerValue }) {
    this.send = (value) => setTriggerValue("edit", value);
    const theme = this.theme();
    const text = JSON.stringify(data);
    if (text === this.text && theme === this.shownTheme && this.root.isConnected) return;
    if (!this.root.isConnected) this.parent.appendChild(this.root);
    this.text = text;
    this.shownTheme = theme;
    this.data = data;
    this.root.dataset.theme = theme;
    this.scales = { signed: data.palette.diverging[theme], share: data.palette[theme] };
    this.root.style.setProperty("--mx-accent", data.palette.accent[theme]);
    if (data.ack >= this.seq) this.pending.clear();
    const frame = JSON.stringify(data.groups, (name, value) => (name === "values" ? undefined : value));
    if (frame !== this.frame) {
      this.frame = frame;
      this.build();
    }
    this.fill();
  }

  theme() {
    const [r, g, b] = (getComputedStyle(this.probe).backgroundColor.match(/[\d.]+/g) || [255, 255, 255]).map(Number);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b < 115 ? "dark" : "light";
  }

  build() {
    this.cells = []; // {element, matrix (its place in the data), row, column}
    this.canvases = [];
    const body = make("div", "mx-groups");
    this.data.groups.forEach((group, g) => {
      const section = make("section", group.quiet ? "mx-group mx-quiet" : "mx-group", body);
      if (group.title) make("h4", "mx-title", section, group.title);
      group.lines.forEach((line, l) => {
        const row = make("div", "mx-line", section);
        if (line.label) make("span", "mx-label", row, line.label);
        line.items.forEach((item, i) => {
          if (typeof item === "string") make("span", "mx-sign", row, item);
          else row.appendChild(this.matrix(item, [g, l, i]));
        });
      });
      if (group.note) make("p", "mx-note", section, group.note);
    });
    this.body.replaceWith(body);
    this.body = body;
  }

  matrix(item, place) {
    const figure = make("figure", "mx-figure");
    const caption = make("figcaption", "mx-caption", figure);
    make("b", "", caption, item.name);
    make("span", "mx-shape", caption, item.shape);
    if (item.editable) make("span", "mx-edit", caption, "✎");
    const columns = item.values.length ? item.values[0].length : 0;
    const scroll = make("div", "mx-scroll", figure);
    if (columns > MOST_COLUMNS || item.values.length > MOST_ROWS) this.picture(item, place, scroll, figure);
    else this.table(item, place, scroll);
    if (item.note) make("span", "mx-note", figure, item.note);
    return figure;
  }

  table(item, place, parent) {
    const table = make("table", "mx-table", parent);
    make("caption", "mx-sr", table, `${item.name}, ${item.shape}`);
    const long = item.columns.some((label) => label.length > 6);
    if (item.columns.length) {
      const head = make("tr", long ? "mx-head mx-long" : "mx-head", make("thead", "", table));
      if (item.rows.length) make("td", "", head);
      for (const label of item.columns) {
        const cell = make("th", "", head);
        cell.scope = "col";
        cell.title = label;
        make("bdi", "", cell, label);
      }
    }
    const body = make("tbody", "", table);
    item.values.forEach((values, row) => {
      const line = make("tr", "", body);
      if (item.rows.length) {
        const head = make("th", "", line);
        head.scope = "row";
        head.title = item.rows[row];
        make("bdi", "", head, item.rows[row]);
      }
      values.forEach((value, column) => {
        const cell = make("td", "mx-cell", line);
        const inBlock = item.marked && column >= item.marked[0] && column < item.marked[1];
        if (inBlock || row === item.marked_row) cell.classList.add("mx-marked");
        const record = { cell, element: cell, place, row, column, name: item.name };
        if (item.editable) {
          const input = make("input", "mx-input", cell);
          input.type = "text";
          input.inputMode = "decimal";
          input.spellcheck = false;
          input.autocomplete = "off";
          input.maxLength = 40;
          const of = item.rows.length ? item.rows[row] : `row ${row}`;
          input.setAttribute("aria-label", `${item.name}, ${of}, column ${item.columns[column] ?? column}`);
          input.dataset.cell = `${item.editable}.${row}.${column}`;
          record.element = input;
        }
        this.cells.push(record);
      });
    });
  }

  /** Too large for numbers: colours, and the number under the pointer. */
  picture(item, place, parent, figure) {
    const [rows, columns] = [item.values.length, item.values[0].length];
    const box = make("div", "mx-picture", parent);
    const labels = make("div", "mx-rows", box);
    const canvas = make("canvas", "mx-canvas", box);
    canvas.setAttribute("role", "img");
    canvas.tabIndex = 0;
    const width = Math.max(3, Math.min(12, Math.floor(420 / columns)));
    const height = rows <= 32 ? 15 : Math.max(4, Math.floor(480 / rows));
    if (rows <= 32) {
      for (const label of item.rows) make("bdi", "", labels, label).title = label;
    }
    canvas.width = columns * width;
    canvas.height = rows * height;
    const said = make("span", "mx-said", figure, "\u00a0");
    const at = { row: 0, column: 0 };
    const say = () => {
      const values = this.at(place).values;
      const label = item.rows.length ? item.rows[at.row] : `row ${at.row}`;
      said.textContent = `${label} (${at.row}), column ${item.columns[at.column] ?? at.column}: ${exact(values[at.row][at.column])}`;
    };
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      at.column = Math.max(0, Math.min(columns - 1, Math.floor(((event.clientX - box.left) / box.width) * columns)));
      at.row = Math.max(0, Math.min(rows - 1, Math.floor(((event.clientY - box.top) / box.height) * rows)));
      say();
    });
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!move) return;
      event.preventDefault();
      at.row = Math.max(0, Math.min(rows - 1, at.row + move[0]));
      at.column = Math.max(0, Math.min(columns - 1, at.column + move[1]));
      said.setAttribute("role", "status");
      say();
    });
    this.canvases.push({ canvas, place, width, height });
  }

  at([g, l, i]) {
    return this.data.groups[g].lines[l].items[i];
  }

  /** The colours of a matrix: the same range for the whole of it, symmetric around 0 when signed. */
  colour(item) {
    if (item.scale === "plain") return () => null;
    if (item.scale === "share") return (value) => (value === null ? null : along(this.scales.share, value));
    let most = 0;
    for (const row of item.values) for (const value of row) if (value !== null) most = Math.max(most, Math.abs(value));
    most = Math.max(most, 1e-9);
    return (value) => (value === null ? null : along(this.scales.signed, 0.5 + value / most / 2 * 0.82));
  }

  fill() {
    const colours = new Map();
    const focused = this.root.getRootNode().activeElement;
    for (const { cell, element, place, row, column } of this.cells) {
      const item = this.at(place);
      if (!colours.has(item)) colours.set(item, this.colour(item));
      const value = item.values[row][column];
      const channels = colours.get(item)(value);
      cell.style.background = channels ? `rgb(${channels.join(" ")})` : "";
      cell.style.color = channels ? (luminance(channels) > 0.2 ? "#0c1322" : "#fff") : "";
      cell.classList.toggle("mx-closed", value === null);
      if (element === cell) {
        cell.textContent = short(value);
        cell.title = exact(value);
      } else {
        element.dataset.value = exact(value);
        const busy = this.pending.has(element.dataset.cell) || (element === focused && !element.dataset.committed);
        if (!busy) this.show(element);
      }
    }
    for (const { canvas, place, width, height } of this.canvases) {
      const item = this.at(place);
      const colour = this.colour(item);
      const pen = canvas.getContext("2d");
      pen.clearRect(0, 0, canvas.width, canvas.height);
      item.values.forEach((values, row) => values.forEach((value, column) => {
        const channels = colour(value);
        if (!channels) return;
        pen.fillStyle = `rgb(${channels.join(" ")})`;
        pen.fillRect(column * width, row * height, width, height);
      }));
      if (item.marked) {
        pen.strokeStyle = this.data.palette.selected[this.shownTheme];
        pen.lineWidth = 3;
        const [first, last] = item.marked;
        pen.strokeRect(first * width + 1.5, 1.5, (last - first) * width - 3, canvas.height - 3);
      }
      const numbers = item.values.flat().filter((value) => value !== null);
      const range = `from ${short(Math.min(...numbers))} to ${short(Math.max(...numbers))}`;
      canvas.setAttribute("aria-label", `${item.name}, ${item.shape}, numbers ${range}; arrow keys read single ones`);
    }
  }

  show(input) {
    input.value = input.dataset.value === "minus infinity" ? "" : input.dataset.value;
    delete input.dataset.committed;
    input.removeAttribute("aria-invalid");
  }

  typed(input) {
    if (!input.dataset.cell) return;
    delete input.dataset.committed;
    const fits = Number.isFinite(read(input.value));
    if (fits) input.removeAttribute("aria-invalid");
    else input.setAttribute("aria-invalid", "true");
    clearTimeout(this.typing);
    if (fits) this.typing = setTimeout(() => this.take(input), TYPING);
  }

  commit(input) {
    if (!input.dataset.cell) return;
    clearTimeout(this.typing);
    input.dataset.committed = "1";
    this.take(input);
  }

  /** A cell that is left with what it was takes back its exact number. */
  left(input) {
    if (input.dataset && input.dataset.cell && input.value.trim() === "" && !this.pending.has(input.dataset.cell)) this.show(input);
  }

  take(input) {
    if (input.value === input.dataset.value && !this.pending.has(input.dataset.cell)) return;
    const [matrix, row, column] = input.dataset.cell.split(".");
    this.pending.set(input.dataset.cell, [matrix, Number(row), Number(column), input.value]);
    this.seq = Date.now();
    this.reminded = 0;
    this.say();
  }

  say(more = {}) {
    if (!this.root.isConnected) return;
    this.send({ seq: this.seq, cells: [...this.pending.values()], ...more });
    clearTimeout(this.reminder);
    this.reminder = setTimeout(() => {
      if (this.pending.size && this.reminded++ < REMINDERS) this.say();
    }, PATIENCE);
  }

  key(event) {
    const input = event.target;
    if (!input.dataset || !input.dataset.cell) return;
    const by = { ArrowUp: STEP, ArrowDown: -STEP }[event.key];
    if (by && Number.isFinite(read(input.value))) {
      event.preventDefault();
      const value = read(input.value) + by * (event.shiftKey ? 10 : 1);
      input.value = String(Math.round(value * 1e6) / 1e6).replace("-", "−");
      this.typed(input);
    } else if (event.key === "Escape") {
      clearTimeout(this.typing);
      this.pending.delete(input.dataset.cell);
      this.show(input);
    } else if (event.key === "Enter") {
      this.commit(input);
    }
  }

  /** A block of numbers, from a spreadsheet for instance, is the whole matrix. */
  paste(event) {
    const input = event.target;
    const text = event.clipboardData ? event.clipboardData.getData("text/plain") : "";
    if (!input.dataset || !input.dataset.cell || !/[\t\n;]|\S[ ,]+\S.*[ ,]/.test(text.trim())) return;
    event.preventDefault();
    this.seq = Date.now();
    this.say({ paste: { matrix: input.dataset.cell.split(".")[0], text: text.slice(0, 4000) } });
  }
}

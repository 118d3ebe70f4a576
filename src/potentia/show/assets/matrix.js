/* A matrix: protocols, gains, intervals, sorting, filters, the way into each cell; of scores, or completed by predictions. */
"use strict";
for (const box of document.querySelectorAll(".matrix")) (async function (P) {
  const data = await P.load(box.querySelector("script"));
  const [head, body] = [box.querySelector("thead"), box.querySelector("tbody")];
  const control = (name) => box.querySelector(`[data-control="${name}"]`);
  const names = data.protocols.map((p) => p.name);
  const views = data.protocols.map((p) => ({ id: p.name, label: p.label }));
  const before = names[0];
  for (const after of names.slice(1)) views.push({ id: `gain:${after}`, label: names.length > 2 ? `gain, ${P.protocol(after)}` : "gain" });
  const failed = new Map(data.failed.map(([model, task, protocol, reason]) => [`${model}\n${task}\n${protocol}`, reason]));
  const state = { view: data.main || before, sort: "rank", down: false };

  const segmented = control("protocol");
  for (const view of segmented ? views : []) {
    const input = P.make("input", { type: "radio", name: "matrix-view", value: view.id, id: `view-${view.id}` });
    input.checked = view.id === state.view;
    input.addEventListener("change", () => { state.view = view.id; draw(); });
    segmented.append(input, P.make("label", { for: `view-${view.id}`, text: view.label }));
  }

  const completed = names.some((name) => data.scores[name].predicted);
  const isGain = () => state.view.startsWith("gain:");
  const protocol = () => (isGain() ? state.view.slice(5) : state.view);
  const cell = (i, j) => {
    const block = data.scores[protocol()];
    const [value, error] = [block.values[i][j], block.stderr[i][j]];
    if (block.predicted) return { value, error, predicted: block.predicted[i][j], low: block.low[i][j], high: block.high[i][j] };
    if (!isGain()) return { value, error };
    const first = data.scores[before];
    const [low, lowError] = [first.values[i][j], first.stderr[i][j]];
    if (value === null || low === null) return { value: null, error: null };
    return { value: value - low, error: error === null || lowError === null ? null : Math.hypot(error, lowError) };
  };

  /* A task that no model has under this protocol is no column of dots. */
  const empty = (task, j) => data.models.every((model, i) =>
    cell(i, j).value === null && !failed.has(`${model.name}\n${task.name}\n${protocol()}`));
  /* The step of a checkpoint has a line of its own: cut off, all checkpoints of a run would look alike. */
  const named = (name) => {
    const at = name.lastIndexOf("@");
    return at > 0 ? [name.slice(0, at), P.make("small", { text: name.slice(at) })] : [name];
  };
  const visible = () => {
    const text = control("name").value.trim().toLowerCase();
    const picked = (name) => (control(name) ? control(name).value : "");
    const [least, most] = (picked("size") || "0-1e9").split("-").map(Number);
    return {
      rows: data.models.map((model, i) => ({ model, i })).filter(({ model }) =>
        (!text || model.name.toLowerCase().includes(text)) && (!picked("family") || model.family === picked("family")) &&
        (!picked("kind") || model.kind === picked("kind")) &&
        (!picked("size") || (model.billions !== null && model.billions >= least && model.billions < most))),
      columns: data.tasks.map((task, j) => ({ task, j })).filter(({ task, j }) =>
        (!picked("category") || task.category === picked("category")) && !empty(task, j)),
    };
  };
  const spread = (columns) => columns.map(({ j, task }) => ({
    known: Float64Array.from(data.models.map((_, i) => cell(i, j).value).filter((v) => v !== null)).sort(), up: task.up,
  }));
  /* By the place among the models of the task, and steeper at the top: there the models differ least and matter most. */
  const below = (known, value) => {
    let [low, high] = [0, known.length];
    while (low < high) { const middle = (low + high) >> 1; if (known[middle] < value) low = middle + 1; else high = middle; }
    return low;
  };
  const shade = (value, { known, up }) => {
    if (isGain()) {
      const reach = Math.max(Math.abs(known[0]), Math.abs(known[known.length - 1])) || 1;
      return { good: value === 0 ? null : (value > 0) === up, share: Math.abs(value) / reach };
    }
    const place = known.length > 1 ? below(known, value) / (known.length - 1) : 0.5;
    return { good: true, share: (up ? place : 1 - place) ** 1.7 };
  };

  const headCell = (key, label, title, attributes = {}) => {
    const button = P.make("button", { type: "button", title }, P.make("span", { text: label }));
    const th = P.make("th", { scope: "col", ...attributes }, button);
    if (state.sort === key) th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    button.addEventListener("click", () => {
      const better = key === "model" || key === "rank" ? false : data.tasks[key].up;
      state.down = state.sort === key ? !state.down : better;
      state.sort = key;
      draw();
      const again = [...head.querySelectorAll("th")].find((other) => other.hasAttribute("aria-sort"));
      if (again) again.querySelector("button").focus();
    });
    return th;
  };
  const address = (model, task) => (box.dataset.live
    ? `${box.dataset.live}/cell?${new URLSearchParams({ model: model.name, task: task.name, protocol: protocol() })}`
    : `#cell=${[model.name, task.name, protocol()].map(encodeURIComponent).join("/")}`);
  const scoreCell = (model, i, task, j, range, withInterval) => {
    const { value, error, predicted, low, high } = cell(i, j);
    const td = P.make("td", { class: "score" });
    const reason = failed.get(`${model.name}\n${task.name}\n${protocol()}`);
    if (value === null) {
      td.className = reason ? "score failed" : "score missing";
      td.append(P.make("span", { title: reason ? `failed: ${reason}` : "no score", text: reason ? "✕" : "·" }));
      td.append(P.make("span", { class: "sr", text: reason ? `failed: ${reason}` : "no score" }));
      return td;
    }
    const { good, share } = shade(value, range);
    td.style.setProperty("--share", share.toFixed(3));
    td.classList.add(good === false ? "worse" : "better");
    const told = (isGain() && value > 0 ? "+" : "") + value.toFixed(Math.abs(value) >= 100 ? 1 : 3);
    if (predicted) { /* hatched: no test was run */
      const digits = Math.abs(value) >= 100 ? 1 : 2;
      const span = [low, high].map((end) => end.toFixed(digits));
      td.classList.add("predicted");
      td.title = `${model.name}, ${task.name}: predicted ${value.toFixed(3)}, 95 % interval ${span.join(" to ")}${reason ? `; failed: ${reason}` : ""}`;
      td.append(P.make("span", { class: "sr", text: `${reason ? `failed: ${reason}; ` : ""}predicted ` }));
      if (reason) td.append(P.make("span", { class: "cross", "aria-hidden": "true", text: "✕ " }));
      td.append(P.make("span", { text: value.toFixed(digits) }));
      td.append(withInterval ? P.make("small", { text: span.join("–") }) : "", P.make("span", { class: "sr", text: ` 95 % interval ${span.join(" to ")}` }));
      return td;
    }
    const number = !isGain() && data.details
      ? P.make("a", { href: address(model, task), text: told })
      : P.make("span", { text: told });
    td.append(number);
    if (error !== null) {
      td.title = `${model.name}, ${task.name}: ${value.toFixed(4)} ± ${(1.96 * error).toFixed(4)}`;
      if (withInterval) td.append(P.make("small", { text: `±${(1.96 * error).toFixed(3)}` }));
    }
    return td;
  };

  const ROWS = 70; /* built at once; more while one scrolls */
  let more = () => {};
  P.onScrollEnd(box.querySelector(".scroll"), () => more());
  function draw() {
    const { rows, columns } = visible();
    const ranges = spread(columns);
    const withInterval = control("intervals").checked;
    const ranked = data.models.some((model) => model.rank);
    head.replaceChildren(P.make("tr", {},
      headCell("model", "model", "sort by name", { class: "model" }),
      ...(ranked ? [headCell("rank", "rank", `rank by the ${data.method}, with its 95 % interval`, { class: "rank" })] : []),
      ...columns.map(({ task, j }) => headCell(j, task.name, `sort by ${task.name}${task.category ? ` (${task.category})` : ""}`, { class: "task" }))));
    const key = state.sort === "model" ? ({ model }) => model.name
      : state.sort === "rank" ? ({ model }) => (model.rank ? model.rank[0] : null)
      : ({ i }) => cell(i, state.sort).value;
    const order = P.sorted(rows, key, state.down);
    let shown = 0;
    more = () => {
      const next = order.slice(shown, shown + ROWS);
      shown += next.length;
      body.append(...next.map(({ model, i }) => P.make("tr", {},
        P.make("th", { scope: "row", class: "model", title: model.name }, ...named(model.short)),
        ...(ranked ? [P.make("td", { class: "rank" }, ...(model.rank
          ? [P.make("b", { text: model.rank[0] }), P.make("small", { text: `${model.rank[1]}–${model.rank[2]}` })] : ["–"]))] : []),
        ...columns.map(({ task, j }, k) => scoreCell(model, i, task, j, ranges[k], withInterval)))));
    };
    body.replaceChildren();
    more();
    box.querySelector("[data-count]").textContent =
      `${rows.length} of ${data.models.length} models, ${columns.length} of ${data.tasks.length} tasks` +
      (isGain() ? `; gain of ${P.protocol(protocol())} over ${P.protocol(before)}` : "");
  }
  for (const name of ["name", "family", "size", "kind", "category", "intervals"]) {
    if (control(name)) control(name).addEventListener("input", draw);
  }
  box.querySelector("[data-download-matrix]").addEventListener("click", () => {
    const { rows, columns } = visible();
    const lines = rows.flatMap(({ model, i }) => columns.map(({ task, j }) => {
      const { value, error, predicted, low, high } = cell(i, j);
      const kind = completed ? [predicted ? "predicted" : "measured", low, high] : [];
      return [protocol(), model.name, task.name, value, error, ...kind, failed.get(`${model.name}\n${task.name}\n${protocol()}`) || ""];
    }));
    P.save(`${isGain() ? "gains" : completed ? "completed" : "scores"}-${P.fileName(protocol())}.csv`,
      P.csv(["protocol", "model", "task", isGain() ? "gain" : "value", "stderr", ...(completed ? ["kind", "low", "high"] : []), "failed"], lines));
  });
  draw();
})(window.potentia);

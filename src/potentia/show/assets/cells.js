/* One cell: score, learning curves, what validation chose, and the items with the model's answers. */
"use strict";
(function (P) {
  const PAGE = 10;

  const facts = (pairs) => P.make("dl", { class: "facts" }, ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => P.make("div", {}, P.make("dt", { text: name }), P.make("dd", { text: value }))));
  const told = (value) => (typeof value === "boolean" ? (value ? "yes" : "no") : Array.isArray(value) ? value.join(", ")
    : value && typeof value === "object" ? Object.entries(value).map(([k, v]) => `${k.replaceAll("_", " ")} ${told(v)}`).join(", ")
    : typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(4))) : value);

  const itemCard = (item, graded) => {
    const right = item.value > 0.5;
    const mark = graded ? P.make("span", { class: right ? "mark right" : "mark wrong", text: right ? "right" : "wrong" }) : P.make("span", { class: "mark", text: P.show(item.value) });
    const card = P.make("article", { class: "item" }, P.make("header", {}, mark, P.make("span", { class: "note", text: `example ${item.id}` })),
      P.make("pre", { class: "prompt", tabindex: "0", text: item.prompt || "(no prompt was stored)" }));
    if (item.choices) {
      const best = item.logprobs ? Math.max(...item.logprobs.filter((x) => x !== null)) : null;
      card.append(P.make("ul", { class: "choices" }, ...item.choices.map((choice, k) => {
        const logprob = item.logprobs ? item.logprobs[k] : null;
        const chosen = choice === item.prediction;
        const gold = choice === item.gold;
        const line = P.make("li", { class: [chosen ? "chosen" : "", gold ? "gold" : ""].join(" ").trim() || null }, P.make("span", { text: choice }));
        if (logprob !== null) line.append(P.make("small", { title: "natural logarithm of the answer's probability", text: `log-probability ${logprob.toFixed(2).replace(/^-0\.00$/, "0.00").replace("-", "−")}${logprob === best ? " (most likely)" : ""}` }));
        if (chosen) line.append(P.make("em", { text: "the model's choice" }));
        if (gold) line.append(P.make("em", { text: "right answer" }));
        return line;
      })));
    } else if (item.gold || item.prediction) {
      card.append(facts([["answer", item.prediction || "(nothing)"], ["right answer", item.gold]]));
    }
    return card;
  };

  /* Items from the file itself, or page by page from the board. */
  const itemList = (cell, url) => {
    const graded = cell.right !== null || cell.higher_is_better;
    const search = P.make("input", { type: "search", placeholder: "search prompts and answers", autocomplete: "off" });
    const outcome = P.make("select", {}, ...[["all", "all"], ["wrong", "wrong"], ["right", "right"]].map(([v, t]) => P.make("option", { value: v, text: t })));
    const list = P.make("div", { class: "items" });
    const status = P.make("p", { class: "caption", role: "status" });
    const [back, next] = [P.make("button", { type: "button", text: "← earlier" }), P.make("button", { type: "button", text: "later →" })];
    let page = 0;
    const local = () => {
      const wanted = search.value.trim().toLowerCase();
      const found = cell.items.filter((item) => (outcome.value === "all" || (item.value > 0.5) === (outcome.value === "right")) &&
        (!wanted || `${item.prompt}\n${item.gold}\n${item.prediction}\n${item.id}`.toLowerCase().includes(wanted)));
      return { total: found.length, entries: found.slice(page * PAGE, (page + 1) * PAGE) };
    };
    const remote = async () => {
      const asked = new URLSearchParams({ page: String(page), size: String(PAGE), query: search.value.trim(), outcome: outcome.value });
      const answer = await fetch(`${url}?${asked}`, { headers: { Accept: "application/json" } });
      return answer.ok ? answer.json() : { total: 0, entries: [] };
    };
    let turn = 0;
    const draw = async () => {
      const mine = (turn += 1);
      const { total, entries } = url ? await remote() : local();
      if (mine !== turn) return;
      list.replaceChildren(...entries.map((item) => itemCard(item, graded)));
      const first = total ? page * PAGE + 1 : 0;
      const whole = url || cell.items.length === cell.total ? "" : `; this file holds ${cell.items.length} of ${cell.total}`;
      status.textContent = `${first}–${Math.min(total, (page + 1) * PAGE)} of ${total} examples${whole}`;
      back.disabled = page === 0;
      next.disabled = (page + 1) * PAGE >= total;
    };
    let wait = 0;
    search.addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(() => { page = 0; draw(); }, url ? 250 : 60); });
    outcome.addEventListener("change", () => { page = 0; draw(); });
    back.addEventListener("click", () => { page -= 1; draw(); });
    next.addEventListener("click", () => { page += 1; draw(); });
    draw();
    return P.make("div", { class: "item-list" }, P.make("h4", { text: "Examples" }),
      P.make("div", { class: "controls" }, P.make("label", { text: "Search " }, search), ...(graded ? [P.make("label", { text: "Show " }, outcome)] : [])),
      status, list, P.make("div", { class: "pager" }, back, next));
  };

  P.renderCell = (panel, cell, { itemsUrl = "" } = {}) => {
    const parts = [P.make("h3", { text: `${cell.model} on ${cell.task_label || cell.task}, ${P.protocol(cell.protocol)}` })];
    const error = cell.error ? ` ${cell.error}, 95 % interval,` : "";
    const gain = cell.gain === null || cell.gain === undefined ? "" : ` Before fine-tuning ${P.show(cell.direct)}: a gain of ${cell.gain > 0 ? "+" : ""}${P.show(cell.gain)}.`;
    parts.push(P.make("p", { class: "headline small", text: `${cell.metric} ${P.show(cell.value)}${error} on ${P.show(cell.n)} test examples.${gain}` }));
    const others = Object.entries(cell.scores).filter(([name]) => name !== cell.metric);
    parts.push(facts([
      ...Object.entries(cell.selection).map(([name, value]) => [name.replaceAll("_", " "), told(value)]),
      ...others.map(([name, [value]]) => [name.replaceAll("_", " "), P.show(value)]),
      ...Object.entries(cell.splits).map(([name, used]) => [`${name} examples`, P.show(used)]),
      ["time", P.clock(cell.seconds)],
    ]));
    if (cell.lanes.length) {
      const curve = (title, caption, values, quantity) => P.make("figure", { class: "figure" },
        P.make("figcaption", {}, P.make("h4", { text: title }), P.make("p", { text: caption })), P.curves(cell.lanes, values, [520, 220], quantity));
      const lines = cell.lanes.flatMap((lane) => lane.epoch.map((epoch, k) => [P.laneName(lane), lane.selected ? "yes" : "", lane.status, epoch, lane.value[k], lane.stderr[k], lane.loss[k]]));
      const table = P.table(["fine-tuning", "chosen", "status", "epoch", `validation ${cell.metric}`, "stderr", "training loss"], lines);
      parts.push(P.make("div", { class: "figures" },
        curve("Validation after each epoch", "One line per fine-tuning; the thick one was chosen, with its 95 % intervals. Epoch 0 is the model before fine-tuning.", "value", `${cell.metric} on validation`),
        curve("Training loss", "Mean loss of each epoch.", "loss", "training loss")),
      P.make("details", { class: "more" }, P.make("summary", { text: "Data table" }), table,
        P.make("div", { class: "tools" }, P.make("button", { type: "button", "data-csv": `fine-tunings ${cell.model} ${cell.task}`, text: "CSV" }))));
    }
    if (itemsUrl || cell.items.length) parts.push(itemList(cell, itemsUrl));
    else parts.push(P.make("p", { class: "caption", text: "No examples are stored for this result." }));
    panel.replaceChildren(...parts);
  };

  /* The live board's page of one cell. */
  const single = document.getElementById("cell-data");
  if (single) P.renderCell(document.getElementById("cell-panel"), P.read(single), { itemsUrl: single.dataset.items });

  const box = document.getElementById("cell-browser");
  if (!box) return;
  const part = (name) => box.querySelector(`[data-cell="${name}"]`);
  const live = box.dataset.live;
  const start = async () => {
    const index = await P.load(document.getElementById("cells-index"));
    const parts = new Map([...box.querySelectorAll("script.cells-data")].map((node) => [node.dataset.label, node]));
    const has = (protocol, model, task) => {
      const row = (index.there[protocol] || [])[index.models.indexOf(model)] || "";
      return row[index.tasks.indexOf(task)] === "1";
    };
    /* A link from a table names the whole task; its first fold answers. */
    const cellTask = (protocol, model, name) => index.tasks.find((task, k) => (task === name || index.wholes[k] === name) && has(protocol, model, task));
    const fill = (name, values) => {
      const select = part(name);
      const old = select.value;
      select.replaceChildren(...values.map(([value, text]) => P.make("option", { value, text })));
      select.value = values.some(([value]) => value === old) ? old : (values[0] || [""])[0];
    };
    const names = index.protocols.map((p) => p.name);
    const narrow = () => {
      const model = part("model").value;
      fill("task", index.tasks.filter((task) => names.some((p) => has(p, model, task))).map((task) => [task, index.labels[index.tasks.indexOf(task)]]));
      const task = part("task").value;
      fill("protocol", index.protocols.filter((p) => has(p.name, model, task)).map((p) => [p.name, p.label]));
    };
    const choose = (model, task, protocol) => {
      part("model").value = model;
      narrow();
      part("task").value = task;
      narrow();
      part("protocol").value = protocol;
    };
    let turn = 0;
    const show = async () => {
      const mine = (turn += 1);
      narrow();
      const [model, task, protocol] = ["model", "task", "protocol"].map((name) => part(name).value);
      const panel = part("detail");
      if (!protocol) return panel.replaceChildren();
      if (!live) {
        const cells = await P.load(parts.get(model));
        const cell = cells.find((c) => c.task === task && c.protocol === protocol);
        return mine === turn && P.renderCell(panel, cell);
      }
      const asked = new URLSearchParams({ model, task, protocol, size: "1" });
      const found = await (await fetch(`${live.replace("/studies/", "/api/studies/")}/cells?${asked}`)).json();
      if (!found.entries.length) return panel.replaceChildren();
      const address = `/api/cells/${encodeURIComponent(found.entries[0].key)}`;
      const cell = await (await fetch(address)).json();
      return mine === turn && P.renderCell(panel, cell, { itemsUrl: `${address}/items` });
    };
    const fromHash = () => {
      const asked = /^#cell=(.+)$/.exec(location.hash);
      const [model, name, protocol] = asked ? asked[1].split("/").map(decodeURIComponent) : [];
      const task = cellTask(protocol, model, name);
      if (task === undefined) return;
      choose(model, task, protocol);
      show();
      document.querySelector("#cells details.section").open = true;
      document.getElementById("cells").scrollIntoView();
      part("model").focus({ preventScroll: true });
    };
    fill("model", index.models.filter((m) => names.some((p) => index.there[p][index.models.indexOf(m)].includes("1"))).map((m) => [m, m]));
    narrow();
    for (const name of ["model", "task", "protocol"]) part(name).addEventListener("change", show);
    window.addEventListener("hashchange", fromHash);
    if (names.includes(index.main) && [...part("protocol").options].some((o) => o.value === index.main)) part("protocol").value = index.main;
    if (/^#cell=/.test(location.hash)) fromHash(); else show();
  };
  let begun = false;
  const begin = () => { if (!begun) { begun = true; start(); } };
  window.addEventListener("hashchange", () => { if (/^#cell=/.test(location.hash)) begin(); });
  if (/^#cell=/.test(location.hash)) begin(); else P.whenSeen(box, begin);
})(window.potentia);

/* The live board: rows and lanes as they run, from the server's stream of events. */
"use strict";
(function (P) {
  const board = document.getElementById("board");
  if (!board) return;
  const part = (name) => board.querySelector(`[data-live="${name}"]`);
  const lanesOf = (lanes) => {
    const tasks = new Map();
    for (const lane of lanes) tasks.set(lane.task, [...(tasks.get(lane.task) || []), lane]);
    return P.make("div", { class: "lanes" }, ...[...tasks].map(([task, some]) => {
      const values = some.flatMap((lane) => lane.value).filter((v) => v !== null);
      const running = some.filter((lane) => !["done", "dropped", "failed", "interrupted"].includes(lane.status)).length;
      const failed = some.filter((lane) => lane.status === "failed").length;
      const state = [running ? `${running} ${running === 1 ? "fine-tuning runs" : "fine-tunings run"}` : "trained", failed ? `${failed} failed` : ""].filter(Boolean).join(", ");
      return P.make("div", { class: "lane" }, P.curves(some, "value", [190, 56], "validation"), P.make("span", { text: `${task} ${values.length ? values.at(-1).toFixed(3) : ""}: ${state}` }));
    }));
  };
  const card = (row, lanes) => {
    const share = row.total ? Math.min(100, (100 * (row.done || 0)) / row.total) : 0;
    const bar = P.make("i");
    bar.style.width = `${share}%`;
    const rate = row.tokens_per_second ? `${Math.round(row.tokens_per_second).toLocaleString("en")} tokens/s`
      : row.rate && row.running ? `${Math.round(row.rate).toLocaleString("en")} ${row.unit || "examples"}/s` : "";
    const facts = [row.phase, row.running && row.total ? `${row.done || 0} of ${row.total} ${row.unit || "examples"}` : "", rate,
      row.running && row.left ? `${P.clock(row.left)} left in this step` : "", row.validation ? `validation ${row.validation}` : "",
      row.lanes_waiting ? `${row.lanes_waiting} fine-tunings wait` : ""].filter(Boolean);
    return P.make("article", { class: "row-card" },
      P.make("header", {}, P.make("b", { text: row.name }), P.make("span", { class: "note", text: facts.join(" · ") })),
      row.running ? P.make("div", { class: "progress", role: "progressbar", "aria-label": `${row.name}: ${row.phase}`, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(share) }, bar) : null,
      lanes && lanes.length ? lanesOf(lanes) : null);
  };
  /* Models that have ended are folded; the fold stays open over redraws once it was opened. */
  let endedOpen = false;
  const endedRows = (ended, total) => {
    const names = ended.slice(0, 12).map((row) => `${row.name} (${row.phase})`).join(", ");
    const fold = P.make("details", { class: "more" },
      P.make("summary", { text: `${total} ${total === 1 ? "model has" : "models have"} ended` }),
      P.make("p", { class: "caption", text: `${names}${total > 12 ? ` and ${total - 12} more` : ""}` }));
    fold.open = endedOpen;
    fold.addEventListener("toggle", () => { endedOpen = fold.open; });
    return fold;
  };
  const told = (event) => {
    const where = `${event.row || ""} × ${event.task || ""} × ${P.protocol(event.protocol || "")}`;
    const time = new Date(1000 * event.at).toLocaleTimeString();
    if (event.kind === "cell") return `${time}  ${where}: ${P.show(event.value, 4)}${event.error ? ` ${event.error}` : ""}`;
    if (event.kind === "failure") return `${time}  ${where} failed: ${event.reason}`;
    return `${time}  ${event.kind} ${event.row || ""}`;
  };
  let shownLog = "";
  let latest = null;
  const draw = (state) => {
    latest = state;
    const pill = part("state");
    pill.textContent = state.running ? `${state.running} ${state.running === 1 ? "model runs" : "models run"}` : state.asked !== null && state.done + state.failed < state.asked ? "not finished" : "finished";
    pill.className = state.running ? "pill on" : "pill";
    const failed = state.failed ? `, ${state.failed} failed` : "";
    part("counts").textContent = `${state.done}${state.asked === null ? "" : ` of ${state.asked}`} results${failed}`;
    part("left").textContent = state.left ? `about ${P.clock(state.left)} left` : "";
    part("cost").textContent = state.seconds ? `${P.clock(state.seconds)} of computing so far` : "";
    const bar = part("bar");
    bar.setAttribute("aria-valuenow", state.done);
    bar.firstElementChild.style.width = `${(100 * state.done) / (state.asked || state.done || 1)}%`;
    const rows = state.running ? state.rows.filter((row) => row.running) : [];
    const ended = state.rows.filter((row) => !row.running);
    part("rows").replaceChildren(...rows.map((row) => card(row, state.lanes[row.name])),
      ...(ended.length ? [endedRows(ended, state.rows_total - rows.length)] : []));
    const log = state.events.map((event) => event.id).join();
    if (log !== shownLog) {
      shownLog = log;
      part("log").replaceChildren(...state.events.map((event) => P.make("li", { class: event.kind === "failure" ? "failure" : null, text: told(event) })));
    }
    board.dataset.done = String(state.done);
  };
  draw(P.read(document.getElementById("live-data")));
  /* The findings on this page are those of so many cells; once the run has ended, or where there are none, newer ones are fetched. */
  let shown = Number(board.dataset.cells);
  const note = document.querySelector("[data-so-far]");
  const state = (cells) => {
    if (note) note.textContent = `The answer so far, from ${cells}${latest.asked === null ? "" : ` of ${latest.asked}`} results, made ${P.clock(Math.max(0, Date.now() / 1000 - Number(note.dataset.made)))} ago; it renews itself.`;
  };
  if (note) setInterval(() => state(shown), 5000);
  const exchange = (cells, made) => fetch(board.dataset.answer).then((page) => (page.ok ? page.text() : "")).then((text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("answer");
    const old = document.getElementById("answer");
    if (!fresh || !old || fresh.querySelector("figure")) { location.reload(); return; }
    const open = old.querySelector("details.more[open]");
    old.replaceWith(document.adoptNode(fresh));
    shown = cells;
    if (note) note.dataset.made = String(made);
    state(cells);
    if (open) fresh.querySelector("details.more")?.setAttribute("open", "");
  });
  const renew = () => {
    if (shown >= 0 && latest.done <= shown) return;
    fetch(board.dataset.findings).then((answer) => (answer.ok ? answer.json() : null))
      .then((found) => {
        if (!found || found.cells <= shown) return null;
        if (shown >= 0 && latest.running && document.getElementById("answer")) return exchange(found.cells, found.made);
        location.reload();
        return null;
      }).catch(() => {});
  };
  renew();
  setInterval(renew, 3000);
  const stream = new EventSource(board.dataset.stream);
  stream.addEventListener("state", (event) => { part("link").textContent = "live"; draw(JSON.parse(event.data)); });
  stream.addEventListener("error", () => { part("link").textContent = "connection lost, trying again"; });
})(window.potentia);

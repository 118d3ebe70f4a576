/* Bump charts, drawn from ranks when they are chosen: whole on a phone too, and one model to follow by hover or choice. */
"use strict";
(function (P) {
  const box = document.querySelector(".bumps");
  if (!box) return;
  const choice = box.querySelector("[data-bump-choice]");
  const follow = box.querySelector("[data-bump-model]");
  const figure = box.querySelector("figure");
  const plot = figure.querySelector(".plot");
  const NARROW = 560; /* pixels, under which long names are cut */
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  let data = null;
  const current = () => data.charts[Number(choice.value)];
  const cut = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

  const build = (chart) => {
    const narrow = plot.clientWidth < NARROW;
    const many = chart.models.length;
    const line = many > 150 ? 11 : many > 80 ? 14 : 17;
    const names = chart.models.map((k) => P.plain(narrow ? cut(data.names[k], 13) : data.names[k]));
    const groups = [...new Set(data.groups)];
    const seen = new Set();
    const last = chart.columns.length - 1;
    const traces = chart.models.map((k, at) => {
      const group = data.groups[k];
      const paint = groups.indexOf(group);
      const first = groups.length > 1 && !seen.has(group);
      seen.add(group);
      return {
        type: "scatter", mode: "lines+markers", name: P.plain(group || "other"), legendgroup: group, showlegend: first,
        x: chart.columns.map((_, c) => c), y: chart.columns.map((_, c) => chart.ranks[c][at]),
        customdata: chart.columns.map(P.plain), hovertemplate: `${P.plain(data.models[k])}<br>%{customdata}: rank %{y}<extra>${P.plain(group)}</extra>`,
        line: { color: P.colours[paint % P.colours.length], width: many > 150 ? 1 : 1.6, dash: DASHES[Math.floor(paint / P.colours.length) % 4] },
        marker: { size: many > 150 ? 4 : 5 },
      };
    });
    /* An axis is drawn only where a trace uses it; an invisible one carries the names on the right. */
    traces.push({ type: "scatter", x: [last], y: [1], yaxis: "y2", mode: "markers", hoverinfo: "skip", marker: { opacity: 0 }, showlegend: false });
    const side = { range: [many + 0.7, 0.3], showgrid: false, zeroline: false, automargin: true, tickfont: { size: Math.min(narrow ? 9 : 10, line - 2) } };
    const by = (c) => chart.models.map((_, at) => at).sort((a, b) => chart.ranks[c][a] - chart.ranks[c][b]);
    const [left, right] = [by(0), by(last)];
    return {
      data: traces,
      layout: {
        height: 130 + line * many, margin: { t: 30, r: 8, l: 8, b: 40 },
        xaxis: { tickvals: chart.columns.map((_, c) => c), ticktext: chart.columns.map(P.plain), showgrid: false, zeroline: false, range: [-0.06, last + 0.06] },
        yaxis: { ...side, tickvals: left.map((at) => chart.ranks[0][at]), ticktext: left.map((at) => `${names[at]}  ${chart.ranks[0][at]}`) },
        yaxis2: { ...side, overlaying: "y", side: "right", matches: "y", tickvals: right.map((at) => chart.ranks[last][at]), ticktext: right.map((at) => `${chart.ranks[last][at]}  ${names[at]}`) },
        legend: { orientation: "h", x: 0, xanchor: "left", y: 1.0, yanchor: "bottom", ...(narrow ? { font: { size: 9 }, entrywidth: 58 } : {}) },
      },
    };
  };
  const highlight = (model) => {
    const chart = current();
    const at = model === null ? -1 : chart.models.indexOf(data.models.indexOf(model));
    for (const trace of figure.querySelectorAll(".scatterlayer .trace")) {
      const drawn = trace.__data__ && trace.__data__[0] && trace.__data__[0].trace;
      const mine = !drawn || at < 0 || drawn.index === at;
      trace.style.opacity = mine ? "1" : "0.12";
      trace.style.strokeWidth = at >= 0 && mine ? "3px" : "";
    }
    const name = at < 0 ? "" : data.names[chart.models[at]];
    for (const label of figure.querySelectorAll(".ytick text, .y2tick text")) {
      const text = label.textContent.replace(/…/g, "").trim();
      const mine = at < 0 || text.split("  ").some((piece) => piece && name.startsWith(piece));
      label.style.opacity = mine ? "1" : "0.25";
      label.style.fontWeight = at >= 0 && mine ? "600" : "";
    }
    figure.dataset.highlighted = model === null ? "" : model;
  };
  const apply = () => highlight(follow.value || null);
  const table = () => {
    const chart = current();
    const grouped = data.groups.some(Boolean);
    const order = chart.models.map((_, at) => at).sort((a, b) => chart.ranks[0][a] - chart.ranks[0][b]);
    return {
      columns: ["model", ...(grouped ? ["family"] : []), ...chart.columns],
      rows: order.map((at) => [data.models[chart.models[at]], ...(grouped ? [data.groups[chart.models[at]]] : []), ...chart.ranks.map((column) => column[at])]),
    };
  };
  const show = async () => {
    const chart = current();
    figure.querySelector("h3").textContent = chart.title;
    figure.querySelector("figcaption p").textContent = chart.caption;
    plot.setAttribute("aria-label", `${chart.title}. ${chart.caption} The numbers are in the data table below.`);
    const chosen = follow.value;
    const models = chart.models.map((k) => data.models[k]).sort((a, b) => a.localeCompare(b));
    follow.replaceChildren(P.make("option", { value: "", text: "no model" }), ...models.map((m) => P.make("option", { value: m, text: m })));
    follow.value = models.includes(chosen) ? chosen : "";
    await P.draw(plot, build(chart));
    figure.dataset.shown = choice.value;
    if (!plot.potentiaEvents) {
      plot.potentiaEvents = true;
      plot.on("plotly_hover", ({ points }) => {
        const model = points[0] && current().models[points[0].curveNumber];
        if (model !== undefined) highlight(data.models[model]);
      });
      plot.on("plotly_unhover", apply);
    }
    apply();
    const place = figure.querySelector("details .scroll");
    place.replaceChildren();
    if (figure.querySelector("details").open) P.table(place, table());
  };
  let narrow = null;
  const start = async () => {
    data = await P.load(document.getElementById("bumps-data"));
    narrow = plot.clientWidth < NARROW;
    await show();
    choice.addEventListener("change", show);
    follow.addEventListener("change", apply);
    document.addEventListener("potentia:theme", () => setTimeout(apply, 300));
    window.addEventListener("resize", () => { /* names are cut on a narrow screen alone */
      if ((plot.clientWidth < NARROW) !== narrow) { narrow = !narrow; show(); }
    });
    figure.querySelector("details").addEventListener("toggle", (event) => {
      const place = event.target.querySelector(".scroll");
      if (event.target.open && !place.firstChild) P.table(place, table());
    });
    figure.querySelector(".tools").addEventListener("click", (event) => {
      const format = event.target.dataset && event.target.dataset.bumpDownload;
      const name = P.fileName(current().name);
      if (format === "csv") { const { columns, rows } = table(); P.save(`${name}.csv`, P.csv(columns, rows)); }
      else if (format) P.picture(plot, format, name, current().title);
    });
  };
  P.whenSeen(box, start);
})(window.potentia);

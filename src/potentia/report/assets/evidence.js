/* Evidence between models: a heat map by protocol and task, and one pair in detail. */
"use strict";
(function (P) {
  const box = document.getElementById("pairs");
  if (!box) return;
  const all = P.read(document.getElementById("pairs-data"));
  const part = (name) => box.querySelector(`[data-pairs="${name}"]`);
  const figure = box.querySelector("figure");
  const plot = figure.querySelector(".plot");
  const CAP = 6; /* evidence is shown up to p = 1e-6 */
  let chosen = all[0];
  const place = (a, b) => { /* the pair's place in the upper triangle */
    const [i, j] = a < b ? [a, b] : [b, a];
    return (i * (2 * chosen.models.length - i - 1)) / 2 + (j - i - 1);
  };
  const options = (select, values) => {
    const old = select.value;
    select.replaceChildren(...values.map(([value, text]) => P.make("option", { value, text })));
    if (values.some(([value]) => value === old)) select.value = old;
  };
  const real = (p) => p !== null && p < 1 - chosen.level;

  /* What is known of the model of the row against the model of the column, over all tasks. */
  const overall = (a, b) => {
    const [k, sign] = [place(a, b), a < b ? 1 : -1];
    let [wins, losses, ties] = [0, 0, 0];
    chosen.tasks.forEach((_, t) => {
      const [p, d] = [chosen.p[t][k], chosen.difference[t][k]];
      if (p === null) return;
      if (!real(p)) ties += 1; else if (d * sign > 0) wins += 1; else losses += 1;
    });
    const mean = chosen.mean[k];
    return { wins, losses, ties, mean: mean === null ? null : mean * sign, p: chosen.mean_p[k], detectable: chosen.detectable[k] };
  };
  const onTask = (a, b, t) => {
    const [k, sign] = [place(a, b), a < b ? 1 : -1];
    const [p, d] = [chosen.p[t][k], chosen.difference[t][k]];
    return { p, difference: d === null ? null : d * sign, kept: p !== null && p <= chosen.critical[t] };
  };
  const task = () => Number(part("task").value);

  const colours = () => (P.isDark()
    ? [[0, "#f0a24a"], [0.35, "#7a5530"], [0.5, "#2a2f36"], [0.65, "#2c5a80"], [1, "#6ab7f5"]]
    : [[0, "#b45309"], [0.3, "#f0b070"], [0.5, "#f4f4f2"], [0.7, "#8cbde6"], [1, "#0b5cad"]]);
  const draw = async () => {
    const t = task();
    const n = chosen.models.length;
    const [z, text] = [[], []];
    for (let a = 0; a < n; a += 1) {
      z.push([]); text.push([]);
      for (let b = 0; b < n; b += 1) {
        if (a === b) { z[a].push(null); text[a].push(""); continue; }
        if (t < 0) {
          const { wins, losses, ties, mean, p, detectable } = overall(a, b);
          const met = wins + losses + ties;
          z[a].push(met ? (wins - losses) / met : null);
          text[a].push(`${wins} wins, ${losses} losses, ${ties} ties<br>mean difference ${P.show(mean)}<br>p ${P.showP(p)}, detectable ${P.show(detectable)}`);
        } else {
          const { p, difference, kept } = onTask(a, b, t);
          z[a].push(p === null ? null : Math.sign(difference) * Math.min(CAP, p === 0 ? CAP : -Math.log10(p)));
          text[a].push(`difference ${P.show(difference)}<br>p ${P.showP(p)}${kept ? ", kept by Benjamini–Hochberg" : ""}`);
        }
      }
    }
    const names = P.shortNames(chosen.models);
    const escaped = names.map((name) => name.replaceAll("&", "&amp;").replaceAll("<", "&lt;"));
    const index = names.map((_, k) => k);
    const reach = t < 0 ? 1 : CAP;
    part("title").textContent = t < 0 ? `Evidence over ${chosen.tasks.length} tasks: ${chosen.label}` : `Evidence on ${chosen.tasks[t]}: ${chosen.label}`;
    part("caption").textContent = t < 0
      ? `Share of tasks won minus share lost, counting only differences that are significant at ${Math.round(100 * chosen.level)} %. Choose two models, or a square, to see the tasks.`
      : `Signed −log₁₀ p (${chosen.basis[t] === "McNemar" ? "McNemar's exact test on the same items" : "z test from standard errors"}), up to p = 1e-6. Faint squares are differences that this test set cannot tell from noise.`;
    const size = Math.max(360, 15 * n + 190);
    await P.draw(plot, {
      data: [{
        type: "heatmap", z, text, x: index, y: index, customdata: escaped.map((r) => escaped.map((c) => [r, c])),
        hovertemplate: "<b>%{customdata[0]}</b> against %{customdata[1]}<br>%{text}<extra></extra>",
        colorscale: colours(), zmin: -reach, zmax: reach, xgap: 1, ygap: 1, hoverongaps: false,
        colorbar: { thickness: 10, len: 0.6, title: { text: t < 0 ? "won − lost" : "−log₁₀ p" } },
      }],
      layout: {
        height: size, margin: { t: 16, r: 8, l: 60, b: 60 },
        xaxis: { tickvals: index, ticktext: escaped, tickangle: -90, showgrid: false, zeroline: false, tickfont: { size: 10 } },
        yaxis: { tickvals: index, ticktext: escaped, autorange: "reversed", showgrid: false, zeroline: false, tickfont: { size: 10 } },
      },
    }, 14 * n + 180);
    if (!plot.potentiaClicks) {
      plot.potentiaClicks = true;
      plot.on("plotly_click", ({ points }) => {
        part("first").value = String(points[0].y);
        part("second").value = String(points[0].x);
        detail();
      });
    }
    const place_ = figure.querySelector("details .scroll");
    place_.replaceChildren();
    if (figure.querySelector("details").open) P.table(place_, rows());
  };
  const rows = () => {
    const t = task();
    const made = [];
    chosen.models.forEach((first, a) => chosen.models.forEach((second, b) => {
      if (a >= b) return;
      if (t < 0) {
        const { wins, losses, ties, mean, p, detectable } = overall(a, b);
        made.push([first, second, wins, losses, ties, mean, p, detectable]);
      } else {
        const { p, difference, kept } = onTask(a, b, t);
        made.push([first, second, difference, p, kept ? "yes" : "no"]);
      }
    }));
    const columns = t < 0 ? ["first", "second", "wins", "losses", "ties", "mean difference", "p", "detectable"]
      : ["first", "second", "difference", "p", "kept by Benjamini–Hochberg"];
    return { columns, rows: made, digits: 4 };
  };
  const detail = () => {
    const [a, b] = [Number(part("first").value), Number(part("second").value)];
    const panel = part("detail");
    if (a === b) return panel.replaceChildren(P.make("p", { class: "caption", text: "Choose two different models." }));
    const { wins, losses, ties, mean, p, detectable } = overall(a, b);
    const line = `${wins} ${wins === 1 ? "win" : "wins"}, ${losses} ${losses === 1 ? "loss" : "losses"} and ${ties} ${ties === 1 ? "tie" : "ties"} ` +
      `over ${wins + losses + ties} tasks. Mean difference ${P.show(mean)} (p ${P.showP(p)}); a true mean difference of ${P.show(detectable)} would be found four times in five.`;
    const table = P.make("div", { class: "scroll table", tabindex: "0", role: "region", "aria-label": "The pair on every task" });
    P.table(table, {
      columns: ["task", "difference", "p", "verdict"], digits: 4,
      rows: chosen.tasks.map((name, t) => {
        const seen = onTask(a, b, t);
        const verdict = seen.p === null ? "not both scored" : !real(seen.p) ? "cannot tell" : (seen.difference > 0 ? "better" : "worse") + (seen.kept ? "" : " (not after Benjamini–Hochberg)");
        return [name, seen.difference, seen.p, verdict];
      }),
    });
    panel.replaceChildren(P.make("h3", { text: `${chosen.models[a]} against ${chosen.models[b]}` }), P.make("p", { text: line }), table);
  };
  const choose = () => {
    options(part("task"), [["-1", "all tasks"], ...chosen.tasks.map((name, t) => [String(t), name])]);
    const models = chosen.models.map((name, k) => [String(k), name]);
    options(part("first"), models);
    options(part("second"), models);
    if (part("first").value === part("second").value) part("second").value = "1";
    detail();
  };
  all.forEach((evidence, k) => {
    const input = P.make("input", { type: "radio", name: "pairs-protocol", id: `pairs-${k}`, value: k });
    input.checked = k === 0;
    input.addEventListener("change", () => { chosen = evidence; choose(); draw(); });
    part("protocol").append(input, P.make("label", { for: `pairs-${k}`, text: evidence.label }));
  });
  part("protocol").hidden = all.length < 2;
  part("task").addEventListener("change", draw);
  part("first").addEventListener("change", detail);
  part("second").addEventListener("change", detail);
  figure.querySelector("details").addEventListener("toggle", (event) => {
    const place_ = event.target.querySelector(".scroll");
    if (event.target.open && !place_.firstChild) P.table(place_, rows());
  });
  figure.querySelector(".tools").addEventListener("click", (event) => {
    const format = event.target.dataset && event.target.dataset.pairsDownload;
    if (format === "csv") { const { columns, rows: lines } = rows(); P.save("evidence.csv", P.csv(columns, lines)); }
    else if (format) draw().then(() => P.picture(plot, format, "evidence", part("title").textContent));
  });
  document.addEventListener("potentia:theme", () => { if (plot.dataset.drawn) draw(); });
  choose();
  P.whenSeen(figure, draw);
})(window.potentia);

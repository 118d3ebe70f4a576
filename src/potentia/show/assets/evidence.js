/* Evidence between models: a heat map by protocol and task, and one pair in detail. The page holds the scores and their
   errors; every pair is compared here, when it is looked at. */
"use strict";
(function (P) {
  const box = document.getElementById("pairs");
  if (!box) return;
  const part = (name) => box.querySelector(`[data-pairs="${name}"]`);
  const figure = box.querySelector("figure");
  const plot = figure.querySelector(".plot");
  const sources = [...box.querySelectorAll("script.pairs-data")];
  const CAP = 6; /* evidence is shown up to p = 1e-6 */
  const MANY = 110; /* models, from which on the map is fitted to the page and some names are left out */
  let chosen = null;

  /* Two-sided p of a z score (Numerical Recipes' erfc, to seven digits). */
  const twoSided = (z) => {
    const x = Math.abs(z) / Math.SQRT2;
    if (x === Infinity) return 0;
    const t = 1 / (1 + 0.5 * x);
    return t * Math.exp(-x * x - 1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * (-0.18628806 +
      t * (0.27886807 + t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277)))))))));
  };
  const numbers = (packed) => { /* −log₁₀ p in thousandths; 65535 where two models were not compared */
    if (!packed) return null;
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    return new Uint16Array(bytes.buffer);
  };
  const place = (a, b) => { /* the pair's place in the upper triangle */
    const [i, j] = a < b ? [a, b] : [b, a];
    return (i * (2 * chosen.models.length - i - 1)) / 2 + (j - i - 1);
  };
  /* The model of the row against the model of the column on one task. */
  const onTask = (a, b, t) => {
    const [x, y] = [chosen.values[t][a], chosen.values[t][b]];
    if (x === null || y === null) return { p: null, difference: null, kept: false };
    const difference = x - y;
    const [s, u] = [chosen.stderr[t][a], chosen.stderr[t][b]];
    let p = null;
    const known = chosen.exact[t] ? chosen.exact[t][place(a, b)] : 65535;
    if (known !== 65535) p = 10 ** (-known / 1000);
    else if (s !== null && u !== null) p = difference === 0 ? 1 : twoSided(difference / Math.hypot(s, u));
    const slack = known !== 65535 ? 1.0015 : 1.000001; /* what packing, and this erfc, round */
    return { p, difference, kept: p !== null && p <= chosen.critical[t] * slack };
  };
  const real = (p) => p !== null && p < 1 - chosen.level;
  /* What is known over all tasks. */
  const overall = (a, b) => {
    let [wins, losses, ties, sum, variance, shared] = [0, 0, 0, 0, 0, 0];
    for (let t = 0; t < chosen.tasks.length; t += 1) {
      const { p, difference } = onTask(a, b, t);
      if (p !== null) { if (!real(p)) ties += 1; else if (difference > 0) wins += 1; else losses += 1; }
      const [s, u] = [chosen.stderr[t][a], chosen.stderr[t][b]];
      if (difference !== null && s !== null && u !== null) { sum += difference; variance += s * s + u * u; shared += 1; }
    }
    if (!shared) return { wins, losses, ties, mean: null, p: null, detectable: null };
    const [mean, error] = [sum / shared, Math.sqrt(variance) / shared];
    return { wins, losses, ties, mean, p: mean === 0 ? 1 : twoSided(mean / error), detectable: chosen.reach * error };
  };
  /* The same for all pairs, but only what the colours need. */
  const balance = () => {
    const n = chosen.models.length;
    const [won, met] = [new Float64Array(n * n), new Float64Array(n * n)];
    const limit = -1000 * Math.log10(1 - chosen.level);
    chosen.tasks.forEach((_, t) => {
      const [values, errors, exact] = [chosen.values[t], chosen.stderr[t], chosen.exact[t]];
      for (let a = 0, k = 0; a < n; a += 1) {
        for (let b = a + 1; b < n; b += 1, k += 1) {
          if (values[a] === null || values[b] === null) continue;
          const difference = values[a] - values[b];
          let sure = false;
          if (exact && exact[k] !== 65535) sure = exact[k] > limit;
          else if (errors[a] === null || errors[b] === null) continue;
          else sure = difference !== 0 && Math.abs(difference) > chosen.z * Math.hypot(errors[a], errors[b]);
          met[a * n + b] += 1;
          if (sure) won[a * n + b] += Math.sign(difference);
        }
      }
    });
    return chosen.models.map((_, a) => chosen.models.map((__, b) => {
      const at = a < b ? a * n + b : b * n + a;
      return a === b || !met[at] ? null : ((a < b ? 1 : -1) * won[at]) / met[at];
    }));
  };
  const task = () => Number(part("task").value);
  const told = (a, b) => {
    const t = task();
    if (t < 0) {
      const { wins, losses, ties, mean, p, detectable } = overall(a, b);
      return [`${wins} wins, ${losses} losses, ${ties} ties`, `mean difference ${P.show(mean)}`, `p ${P.showP(p)}, detectable ${P.show(detectable)}`];
    }
    const { p, difference, kept } = onTask(a, b, t);
    return [`difference ${P.show(difference)}`, `p ${P.showP(p)}${kept ? ", kept by Benjamini–Hochberg" : ""}`];
  };

  const colours = () => (P.isDark()
    ? [[0, "#f0a24a"], [0.35, "#7a5530"], [0.5, "#2a2f36"], [0.65, "#2c5a80"], [1, "#6ab7f5"]]
    : [[0, "#b45309"], [0.3, "#f0b070"], [0.5, "#f4f4f2"], [0.7, "#8cbde6"], [1, "#0b5cad"]]);
  const tip = P.make("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  figure.append(tip);
  const draw = async () => {
    const t = task();
    const n = chosen.models.length;
    const index = chosen.models.map((_, k) => k);
    const z = t < 0 ? balance() : index.map((a) => index.map((b) => {
      if (a === b) return null;
      const { p, difference } = onTask(a, b, t);
      return p === null ? null : Math.sign(difference) * Math.min(CAP, p === 0 ? CAP : -Math.log10(p));
    }));
    const names = P.shortNames(chosen.models).map(P.plain);
    const reach = t < 0 ? 1 : CAP;
    part("title").textContent = t < 0 ? `Evidence over ${chosen.tasks.length} ${chosen.tasks.length === 1 ? "task" : "tasks"}: ${chosen.label}` : `Evidence on ${chosen.tasks[t]}: ${chosen.label}`;
    part("caption").textContent = t < 0
      ? `Share of tasks won minus share lost, counting only differences that are significant at ${Math.round(100 * chosen.level)} %. Choose two models, or a square, to see the tasks.`
      : `Signed −log₁₀ p (${chosen.basis[t] === "McNemar" ? "McNemar's exact test on the same items" : "z test from standard errors"}), up to p = 1e-6. Faint squares are differences that this test set cannot tell from noise.`;
    const many = n > MANY;
    const every = many ? Math.ceil(n / 60) : 1;
    const shown = index.filter((k) => k % every === 0);
    const axis = { tickvals: shown, ticktext: shown.map((k) => names[k]), showgrid: false, zeroline: false, tickfont: { size: 10 } };
    await P.draw(plot, {
      data: [{
        type: "heatmap", z, x: index, y: index, hoverinfo: "none", colorscale: colours(), zmin: -reach, zmax: reach,
        xgap: many ? 0 : 1, ygap: many ? 0 : 1, hoverongaps: false,
        colorbar: {
          orientation: "h", x: 0, xanchor: "left", y: 1, yanchor: "bottom", ypad: 4, thickness: 8, len: 0.6,
          title: { text: t < 0 ? "share won − lost" : "−log₁₀ p", side: "top" },
        },
      }],
      layout: {
        height: many ? 1050 : Math.max(360, 15 * n + 190), margin: { t: 60, r: 8, l: 60, b: 60 },
        xaxis: { ...axis, tickangle: -90 }, yaxis: { ...axis, autorange: "reversed" },
      },
    }, many ? 900 : 14 * n + 180);
    if (!plot.potentiaEvents) {
      plot.potentiaEvents = true;
      plot.on("plotly_click", ({ points }) => {
        part("first").value = String(points[0].y);
        part("second").value = String(points[0].x);
        detail();
      });
      plot.on("plotly_hover", ({ points, event }) => {
        const [a, b] = [points[0].y, points[0].x];
        if (a === b) return;
        tip.replaceChildren(P.make("b", { text: P.shortNames(chosen.models)[a] }), ` against ${P.shortNames(chosen.models)[b]}`, ...told(a, b).map((line) => P.make("div", { text: line })));
        tip.hidden = false;
        const frame = figure.getBoundingClientRect();
        tip.style.left = `${Math.min(event.clientX - frame.left + 14, frame.width - tip.offsetWidth - 8)}px`;
        tip.style.top = `${event.clientY - frame.top + 14}px`;
      });
      plot.on("plotly_unhover", () => { tip.hidden = true; });
    }
    const table = figure.querySelector("details .scroll");
    table.replaceChildren();
    if (figure.querySelector("details").open) P.table(table, rows());
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
  const options = (select, values) => {
    const old = select.value;
    select.replaceChildren(...values.map(([value, text]) => P.make("option", { value, text })));
    if (values.some(([value]) => value === old)) select.value = old;
  };
  const choose = async (source) => {
    const data = await P.load(source);
    data.exact ||= data.p.map(numbers);
    chosen = data;
    options(part("task"), [["-1", "all tasks"], ...chosen.tasks.map((name, t) => [String(t), name])]);
    const models = chosen.models.map((name, k) => [String(k), name]);
    options(part("first"), models);
    options(part("second"), models);
    if (part("first").value === part("second").value) part("second").value = "1";
    detail();
  };
  sources.forEach((source, k) => {
    const input = P.make("input", { type: "radio", name: "pairs-protocol", id: `pairs-${k}`, value: k });
    input.checked = k === 0;
    input.addEventListener("change", () => choose(source).then(draw));
    part("protocol").append(input, P.make("label", { for: `pairs-${k}`, text: source.dataset.label }));
  });
  part("protocol").hidden = sources.length < 2;
  part("task").addEventListener("change", draw);
  part("first").addEventListener("change", detail);
  part("second").addEventListener("change", detail);
  figure.querySelector("details").addEventListener("toggle", (event) => {
    const table = event.target.querySelector(".scroll");
    if (event.target.open && !table.firstChild && chosen) P.table(table, rows());
  });
  figure.querySelector(".tools").addEventListener("click", (event) => {
    const format = event.target.dataset && event.target.dataset.pairsDownload;
    if (!chosen) return;
    if (format === "csv") { const { columns, rows: lines } = rows(); P.save("evidence.csv", P.csv(columns, lines)); }
    else if (format) draw().then(() => P.picture(plot, format, "evidence", part("title").textContent));
  });
  document.addEventListener("potentia:theme", () => { if (plot.dataset.drawn) draw(); });
  P.whenSeen(box, () => choose(sources[0]).then(draw));
})(window.potentia);

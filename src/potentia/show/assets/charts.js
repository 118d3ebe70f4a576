/* Figures: plotly is loaded when the first one comes into view, each is drawn when it is seen. */
"use strict";
(function (P) {
  let loading = null;
  const load = (fill) => new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.addEventListener("load", resolve);
    script.addEventListener("error", reject);
    fill(script);
    document.head.append(script);
    if (!script.src) resolve();
  });
  P.plotly = () => {
    if (window.Plotly) return Promise.resolve(window.Plotly);
    if (!loading) {
      const inside = document.getElementById("plotly-source");
      const ready = inside
        ? P.unpack(inside.textContent).then((text) => load((script) => { script.textContent = text; }))
        : load((script) => { script.src = document.querySelector("meta[name=plotly]").content; });
      loading = ready.then(() => window.Plotly);
    }
    return loading;
  };

  P.colours = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7F7F7F", "#B8A800"];
  const axis = () => ({ gridcolor: P.css("--line"), zerolinecolor: P.css("--line-strong"), linecolor: P.css("--line"), automargin: true });
  const themed = (layout) => {
    const made = { ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false };
    made.font = { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12, color: P.css("--ink") };
    made.hoverlabel = { align: "left", bgcolor: P.css("--raised"), bordercolor: P.css("--line-strong"), font: { color: P.css("--ink") } };
    for (const name of ["xaxis", "yaxis", "yaxis2"]) if (name !== "yaxis2" || layout[name]) made[name] = { ...axis(), ...(layout[name] || {}) };
    return made;
  };
  const scales = (written) => { /* one hue: the more, the farther from the paper; numbers in it stay readable */
    if (P.isDark()) return written ? [[0, "#1f2833"], [1, "#2d6396"]] : [[0, "#1f2833"], [0.25, "#274a6e"], [0.5, "#3573ad"], [0.75, "#5f9fdb"], [1, "#b4d8fb"]];
    return written ? [[0, "#f6f9fc"], [0.5, "#b9d3ee"], [1, "#6ba5dd"]] : [[0, "#f1f5fa"], [0.25, "#c3d8ef"], [0.5, "#86b3de"], [0.75, "#3f82c4"], [1, "#0b4a8f"]];
  };
  const inked = (traces) => traces.map((trace) => {
    const made = { ...trace };
    if (made.meta === "sequential") made.colorscale = scales(Boolean(made.texttemplate));
    if (made.meta === "sequential" && made.texttemplate) made.textfont = { ...made.textfont, color: P.css("--ink") };
    if (made.line && made.line.color === "#333333") made.line = { ...made.line, color: P.css("--ink") };
    for (const error of ["error_x", "error_y"]) {
      if (made[error] && made.type === "bar") made[error] = { ...made[error], color: P.css("--muted") };
    }
    return made;
  });

  const drawn = new Map(); /* plot → figure */
  P.draw = async (plot, figure, minWidth = 0) => {
    const Plotly = await P.plotly();
    drawn.set(plot, figure);
    plot.style.minWidth = minWidth ? `${minWidth}px` : "";
    plot.style.minHeight = "";
    await Plotly.react(plot, inked(figure.data), themed(figure.layout), { responsive: true, displayModeBar: false });
    plot.dataset.drawn = "true";
    return plot;
  };
  document.addEventListener("potentia:theme", () => {
    for (const [plot, figure] of drawn) if (plot.isConnected) P.draw(plot, figure, parseInt(plot.style.minWidth, 10) || 0);
  });
  P.picture = async (plot, format, name, title) => {
    const Plotly = await P.plotly();
    const figure = drawn.get(plot);
    const layout = {
      ...figure.layout, title: { text: title, x: 0.02, font: { size: 15 } }, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff",
      font: { family: "Helvetica, Arial, sans-serif", size: 12, color: "#1b1b1b" },
      margin: { ...(figure.layout.margin || {}), t: 64 },
    };
    for (const side of ["xaxis", "yaxis", "yaxis2"]) if (layout[side]) layout[side] = { automargin: true, ...layout[side] };
    const width = Math.max(900, parseInt(plot.style.minWidth, 10) || 0);
    const height = (figure.layout.height || 480) + 40;
    const url = await Plotly.toImage({ data: figure.data, layout }, { format, width, height, scale: format === "png" ? 2 : 1 });
    P.saveUrl(`${name}.${format}`, url);
  };

  const data = (box) => P.load(box.querySelector("script.figure-data"));
  P.drawFigure = (box) => (box.drawing ||= data(box).then(({ figure, minWidth }) => P.draw(box.querySelector(".plot"), figure, minWidth)));
  P.whenSeen = (box, then) => {
    if (!("IntersectionObserver" in window)) return then();
    const watcher = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) { watcher.disconnect(); then(); }
    }, { rootMargin: "250px" });
    watcher.observe(box);
  };
  for (const plot of document.querySelectorAll(".plot[data-height]")) plot.style.minHeight = `${plot.dataset.height}px`;
  for (const box of document.querySelectorAll("figure[data-figure]")) {
    P.whenSeen(box, () => P.drawFigure(box));
    const details = box.querySelector("details.data");
    details.addEventListener("toggle", async () => {
      const place = details.querySelector(".scroll");
      if (details.open && !place.firstChild) P.table(place, (await data(box)).table);
    });
    box.querySelector(".tools").addEventListener("click", async (event) => {
      const format = event.target.dataset && event.target.dataset.download;
      if (!format) return;
      const { table } = await data(box);
      if (format === "csv") return P.save(`${box.dataset.name}.csv`, P.csv(table.columns, table.rows));
      const plot = await P.drawFigure(box);
      return P.picture(plot, format, box.dataset.name, box.querySelector("h3").textContent);
    });
  }
  window.addEventListener("beforeprint", () => {
    for (const box of document.querySelectorAll("figure[data-figure]")) if (box.offsetParent) P.drawFigure(box);
  });
})(window.potentia);

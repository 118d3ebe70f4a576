/* Pictures to take away, and the small curves of lanes. All other drawings are in the page already. */
"use strict";
(function (P) {
  const SVG = "http://www.w3.org/2000/svg";

  /* The drawing as a file: its colours are the page's, so they go with it. */
  const alone = (svg) => {
    const copy = svg.cloneNode(true);
    const kept = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "font-size", "font-weight", "font-family"];
    const [from, to] = [svg.querySelectorAll("*"), copy.querySelectorAll("*")];
    from.forEach((node, k) => {
      const style = getComputedStyle(node);
      for (const name of kept) to[k].style.setProperty(name, style.getPropertyValue(name));
    });
    copy.setAttribute("xmlns", SVG);
    copy.style.background = P.css("--raised");
    return new XMLSerializer().serializeToString(copy);
  };
  const png = (svg, text) => new Promise((resolve) => {
    const image = new Image();
    image.addEventListener("load", () => {
      const canvas = P.make("canvas", { width: 2 * svg.width.baseVal.value, height: 2 * svg.height.baseVal.value });
      const paper = canvas.getContext("2d");
      paper.fillStyle = P.css("--raised");
      paper.fillRect(0, 0, canvas.width, canvas.height);
      paper.drawImage(image, 0, 0, canvas.width, canvas.height);
      resolve(canvas.toDataURL("image/png"));
    });
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  });
  document.addEventListener("click", async (event) => {
    const format = event.target.dataset && event.target.dataset.picture;
    if (!format) return;
    const figure = event.target.closest("figure");
    const svg = figure.querySelector("svg");
    const name = figure.id.replace(/^fig-/, "");
    if (format === "svg") P.save(`${name}.svg`, alone(svg), "image/svg+xml");
    else P.saveUrl(`${name}.png`, await png(svg, alone(svg)));
  });

  /* The curves of lanes over their epochs, with the highest and the lowest value at the side. */
  P.curves = (lanes, values, [width, height], what) => {
    const node = (tag, attributes, text) => {
      const made = document.createElementNS(SVG, tag);
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      if (text !== undefined) made.textContent = text;
      return made;
    };
    const points = lanes.flatMap((lane) => lane[values].map((v, k) => [lane.epoch[k], v])).filter(([, v]) => v !== null);
    const label = points.length ? `${what} of ${lanes.length} lanes of ${lanes[0].task}` : `no ${what} of ${lanes[0].task} yet`;
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "chart" });
    if (!points.length) return svg;
    const [low, high] = [Math.min(...points.map(([, v]) => v)), Math.max(...points.map(([, v]) => v))];
    const last = Math.max(1, ...points.map(([x]) => x));
    const [right, bottom] = [width - 48, height - 16];
    const at = ([x, y]) => [4 + ((right - 8) * x) / last, bottom - (bottom - 6) * (high > low ? (y - low) / (high - low) : 1)];
    svg.append(node("text", { x: right + 4, y: 9, class: "small" }, high.toFixed(3)));
    if (high > low) svg.append(node("text", { x: right + 4, y: bottom, class: "small" }, low.toFixed(3)));
    svg.append(node("text", { x: 4, y: height - 3, class: "small" }, "0"), node("text", { x: right, y: height - 3, class: "small", "text-anchor": "end" }, `epoch ${last}`));
    lanes.forEach((lane, k) => {
      const known = lane.epoch.map((x, i) => [x, lane[values][i]]).filter(([, v]) => v !== null).map(at);
      if (!known.length) return;
      const [x, y] = known[0];
      const line = known.length === 1 ? node("circle", { cx: x, cy: y, r: 3, class: `f${k % 8}` }) : node("path", {
        d: known.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join(""), class: `s${k % 8}`,
        style: `stroke-width: ${lane.selected ? 3 : 1.6}`, "stroke-dasharray": ["failed", "dropped", "stopped"].includes(lane.status) ? "2 3" : "none",
      });
      line.append(node("title", {}, P.laneName(lane)));
      svg.append(line);
    });
    return svg;
  };
  P.laneName = (lane) => [`lr ${lane.learning_rate}`, lane.style && lane.style !== "plain" ? lane.style : "", lane.seed ? `seed ${lane.seed}` : ""].filter(Boolean).join(", ");
  P.whenSeen = (box, then) => {
    if (!("IntersectionObserver" in window)) return then();
    const watcher = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) { watcher.disconnect(); then(); }
    }, { rootMargin: "250px" });
    watcher.observe(box);
  };
})(window.potentia);

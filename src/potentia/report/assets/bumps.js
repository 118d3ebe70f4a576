/* Bump charts: choose what to compare, and follow one model by hover or by choice. */
"use strict";
(function (P) {
  const box = document.querySelector(".bumps");
  if (!box) return;
  const choice = box.querySelector("[data-bump-choice]");
  const follow = box.querySelector("[data-bump-model]");
  const current = () => [...box.querySelectorAll("[data-bump]")].find((part) => !part.hidden).querySelector("figure");

  const highlight = (figure, model) => {
    const at = model === null ? -1 : P.figureData(figure).models.indexOf(model);
    for (const trace of figure.querySelectorAll(".scatterlayer .trace")) {
      const drawn = trace.__data__ && trace.__data__[0] && trace.__data__[0].trace;
      const mine = !drawn || at < 0 || drawn.index === at;
      trace.style.opacity = mine ? "1" : "0.12";
      trace.style.strokeWidth = at >= 0 && mine ? "3px" : "";
    }
    for (const label of figure.querySelectorAll(".ytick text, .y2tick text")) {
      const mine = at < 0 || label.textContent.includes(short(figure, at));
      label.style.opacity = mine ? "1" : "0.25";
      label.style.fontWeight = at >= 0 && mine ? "600" : "";
    }
    figure.dataset.highlighted = model === null ? "" : model;
  };
  const short = (figure, at) => P.figureData(figure).names[at];
  const fill = () => {
    const chosen = follow.value;
    const models = [...P.figureData(current()).models].sort((a, b) => a.localeCompare(b));
    follow.replaceChildren(P.make("option", { value: "", text: "no model" }), ...models.map((m) => P.make("option", { value: m, text: m })));
    follow.value = models.includes(chosen) ? chosen : "";
  };
  const apply = () => highlight(current(), follow.value || null);

  box.addEventListener("potentia:drawn", (event) => {
    const figure = event.target;
    const plot = figure.querySelector(".plot");
    plot.on("plotly_hover", ({ points }) => {
      const { models } = P.figureData(figure);
      if (points[0] && points[0].curveNumber < models.length) highlight(figure, models[points[0].curveNumber]);
    });
    plot.on("plotly_unhover", apply);
    apply();
  });
  document.addEventListener("potentia:theme", () => setTimeout(apply, 300));
  choice.addEventListener("change", () => {
    for (const part of box.querySelectorAll("[data-bump]")) part.hidden = part.dataset.bump !== choice.value;
    fill();
    P.drawFigure(current()).then(apply);
  });
  follow.addEventListener("change", apply);
  fill();
})(window.potentia);

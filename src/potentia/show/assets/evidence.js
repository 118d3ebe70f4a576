/* Two models against each other, task by task; the numbers are Python's. */
"use strict";
(function (P) {
  const box = document.querySelector(".pairs");
  if (!box) return;
  const part = (name) => box.querySelector(`[data-pairs="${name}"]`);
  const sources = [...box.querySelectorAll("script.pairs-data")];
  const noun = (n, one, many) => `${n} ${n === 1 ? one : many}`;
  let data = null;

  const verdict = (difference, p, kept) => {
    if (p === null) return "not both scored";
    if (p >= 1 - data.level) return "cannot tell";
    return (difference > 0 ? "better" : "worse") + (kept === "1" ? "" : " (not after Benjamini–Hochberg)");
  };
  const show = () => {
    const [a, b] = [Number(part("first").value), Number(part("second").value)];
    if (a === b) { part("detail").replaceChildren(P.make("p", { class: "caption", text: "Choose two different models." })); return; }
    const [i, j, sign] = a < b ? [a, b, 1] : [b, a, -1];
    const at = (i * (2 * data.models.length - i - 1)) / 2 + (j - i - 1); /* the pair's place in the upper triangle */
    const [w, l, ties, mean, p, detectable] = data.pairs[at];
    const [wins, losses] = sign > 0 ? [w, l] : [l, w];
    const turned = (x) => (x === null ? null : sign * x);
    const line = `${noun(wins, "win", "wins")}, ${noun(losses, "loss", "losses")} and ${noun(ties, "tie", "ties")} over ${noun(wins + losses + ties, "task", "tasks")}. ` +
      `Mean difference ${P.show(turned(mean))} (p ${P.showP(p)}); a true mean difference of ${P.show(detectable)} or more would be detected (80 % power).`;
    const rows = data.tasks.map((task, t) => {
      const difference = turned(data.difference[at][t]);
      return [task, difference, data.p[at][t], verdict(difference, data.p[at][t], data.kept[at][t])];
    });
    part("detail").replaceChildren(P.make("h3", { text: `${data.models[a]} against ${data.models[b]}` }), P.make("p", { text: line }),
      P.table(["task", "difference", "p", "verdict"], rows, 4));
  };
  const choose = async () => {
    data = await P.load(sources[Number(part("protocol").value)]);
    const models = () => data.models.map((name, k) => P.make("option", { value: k, text: name }));
    part("first").replaceChildren(...models());
    part("second").replaceChildren(...models());
    part("second").value = "1";
    show();
  };
  part("protocol").replaceChildren(...sources.map((source, k) => P.make("option", { value: k, text: source.dataset.label })));
  part("protocol").parentElement.hidden = sources.length < 2;
  part("protocol").addEventListener("change", choose);
  part("first").addEventListener("change", show);
  part("second").addEventListener("change", show);
  P.whenSeen(box, choose);
})(window.potentia);

"use strict";
(() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // The figures say nothing of the colours of paper, ink and grid: these are the page's.
  function themed(layout) {
    const ink = colour("--ink"), grid = colour("--grid"), paper = colour("--paper");
    const themed = { ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" };
    themed.font = { ...layout.font, color: ink };
    themed.hoverlabel = { ...layout.hoverlabel, bgcolor: paper, bordercolor: grid,
      font: { color: ink } };
    for (const key of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
      themed[key] = { ...layout[key], gridcolor: grid, linecolor: grid, zerolinecolor: grid };
    }
    return themed;
  }

  const settings = { responsive: true, displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  const figures = [...document.querySelectorAll("figure")].map((figure) => ({
    place: figure.querySelector(".plot"),
    content: JSON.parse(figure.querySelector("script").textContent),
  }));

  function draw() {
    for (const { place, content } of figures) {
      Plotly.react(place, content.data, themed(content.layout), settings);
    }
  }
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  matchMedia("print").addEventListener("change", draw);

  // Folded tables belong onto paper, too.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((details) => { details.open = false; }));
})();

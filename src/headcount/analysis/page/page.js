"use strict";
// Draws every figure of the page in the reader's colours, and again when these change.
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function draw(id) {
    const spec = specs[id];
    const axis = { gridcolor: colour("--rule"), zerolinecolor: colour("--soft"), linecolor: colour("--soft"), automargin: true };
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink"), family: "system-ui, sans-serif", size: 13 },
      margin: { l: 60, r: 20, t: 10, b: 50 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      hoverlabel: { align: "left" },
      height: 400,
      ...spec.layout,
      xaxis: { ...axis, ...spec.layout.xaxis },
      yaxis: { ...axis, ...spec.layout.yaxis },
    };
    // A black series would vanish on a dark page.
    const data = JSON.parse(JSON.stringify(spec.data).replaceAll("#000000", dark.matches ? "#ffffff" : "#000000"));
    Plotly.react(id, data, layout, { responsive: true, displayModeBar: false });
  }

  const all = () => Object.keys(specs).forEach(draw);
  all();
  dark.addEventListener("change", all);
})();


"use strict";
(() => {
  const figures = [...document.querySelectorAll("figure[data-figure]")];
  const charts = [];
  for (const figure of figures) {
    const read = (part) => JSON.parse(figure.querySelector(`script[data-part="${part}"]`).textContent);
    const chart = figure.querySelector(".chart");
    Plotly.newPlot(chart, read("data"), read("layout"), { responsive: true, displayModeBar: false });
    charts.push(chart);
  }
  // On paper the page has another width and a closed <details> stays closed.
  const details = [...document.querySelectorAll("details.long")];
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = details.filter((one) => !one.open);
    closed.forEach((one) => { one.open = true; });
    charts.forEach((chart) => Plotly.relayout(chart, { width: 640 }));
  });
  window.addEventListener("afterprint", () => {
    closed.forEach((one) => { one.open = false; });
    charts.forEach((chart) => Plotly.relayout(chart, { width: null, autosize: true }));
  });
})();

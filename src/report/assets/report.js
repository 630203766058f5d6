// Draws each chart from its spec. Colours are CSS variables, so that the charts follow the colour scheme
// and print without being drawn again.
(function () {
  'use strict';
  const specs = JSON.parse(document.getElementById('specs').textContent);
  const ink = 'var(--ink)', soft = 'var(--soft)', line = 'var(--line)';
  const category = [1, 2, 3, 4, 5, 6, 7, 8].map((i) => `var(--c${i})`);

  function config(width) {
    return {
      background: null,
      font: 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif',
      view: { stroke: null },
      axis: {
        labelColor: ink, titleColor: soft, gridColor: line, domainColor: soft, tickColor: soft,
        labelFontSize: 12, titleFontSize: 12, titleFontWeight: 'normal', titlePadding: 8,
        labelOverlap: 'greedy', labelSeparation: 6,
      },
      axisBand: { labelLimit: Math.min(260, Math.round(width * 0.38)) },
      legend: {
        labelColor: ink, titleColor: soft, labelFontSize: 12, titleFontSize: 12,
        titleFontWeight: 'normal', symbolBaseFillColor: ink, symbolBaseStrokeColor: ink,
        orient: 'bottom', columns: width < 480 ? 2 : 6, labelLimit: 160,
      },
      text: { color: ink, fontSize: 12 },
      rule: { color: soft },
      line: { color: soft },
      range: { category },
    };
  }

  for (const { id, spec } of specs) {
    const host = document.getElementById(id);
    const options = {
      mode: 'vega-lite', renderer: 'svg', actions: false, defaultStyle: false,
      config: config(host.clientWidth), tooltip: { disableDefaultStyle: true },
    };
    window.vegaEmbed(host, spec, options).then(
      () => { host.dataset.drawn = 'yes'; },
      (error) => {
        host.textContent = `This chart could not be drawn: ${error.message}`;
        console.error(error);
      });
  }
})();

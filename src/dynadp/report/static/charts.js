// Vega charts that follow the page's light or dark colours. Expressions are interpreted, never compiled: the page's policy
// forbids code that is made from text.
export const Charts = (() => {
  const placeholders = { "#0072B2": "--blue", "#D55E00": "--orange", "#009E73": "--green", "#666666": "--grey" };
  const known = new Map(); // id -> { spec, data, view }
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function config() {
    const ink = colour("--ink"), line = colour("--line");
    const text = { labelColor: ink, titleColor: ink, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" };
    return {
      aria: false, background: "transparent", font: "system-ui, sans-serif", view: { stroke: null },
      axis: { ...text, domainColor: line, tickColor: line, gridColor: line, gridOpacity: 0.5 }, legend: text,
    };
  }

  async function draw(id) {
    const chart = known.get(id);
    if (chart.busy) return void (chart.again = true); // drawn once more when this is done
    chart.busy = true;
    let text = JSON.stringify({ ...chart.spec, datasets: { ...chart.spec.datasets, ...chart.data } });
    for (const [from, to] of Object.entries(placeholders)) text = text.replaceAll(from, colour(to));
    const options = {
      ast: true, actions: false, renderer: "svg", defaultStyle: false, tooltip: { disableDefaultStyle: true }, config: config(),
    };
    const result = await vegaEmbed(document.getElementById(`chart-${id}`), JSON.parse(text), options);
    if (chart.view) chart.view.finalize();
    Object.assign(chart, { view: result.view, busy: false });
    if (chart.again) {
      chart.again = false;
      await draw(id);
    }
  }

  return {
    // Says how a chart looks; it is drawn when it has something to show.
    plan(id, spec) {
      known.set(id, { data: {}, ...known.get(id), spec });
    },
    // Draws a chart that brings its values along; what was given by update stays.
    async show(id, spec) {
      this.plan(id, spec);
      await draw(id);
    },
    // Gives a chart new values for one of its named sets.
    async update(id, name, values) {
      const chart = known.get(id);
      if (!chart) return;
      chart.data[name] = values;
      if (chart.view) await chart.view.data(name, values).runAsync();
      else if (values.length) await draw(id);
      document.getElementById(`chart-${id}`).dataset.shown = values.length;
    },
    // Draws all charts again, in the colours of now.
    async redraw() {
      for (const [id, chart] of known) if (chart.view) await draw(id);
    },
  };
})();

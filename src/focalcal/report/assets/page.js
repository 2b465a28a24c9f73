"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const drawn = new Set();

  // A colour is "@name": the value of the CSS variable --name in the current theme.
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    return (name) => style.getPropertyValue("--" + name).trim();
  };
  const painted = (x, colour) => {
    if (typeof x === "string") return x.startsWith("@") ? colour(x.slice(1)) : x;
    if (Array.isArray(x)) return typeof x[0] === "number" ? x : x.map((v) => painted(v, colour));
    if (x && typeof x === "object") {
      return Object.fromEntries(Object.entries(x).map(([k, v]) => [k, painted(v, colour)]));
    }
    return x;
  };
  const axes = (layout, colour) => {
    for (const [key, value] of Object.entries(layout)) {
      if (!/^[xy]axis/.test(key)) continue;
      layout[key] = {
        gridcolor: colour("grid"), zerolinecolor: colour("grid"), linecolor: colour("line"),
        fixedrange: true, automargin: true, ...value,
      };
    }
    return layout;
  };

  const draw = (id) => {
    const place = document.getElementById(id);
    const spec = figures[id];
    const colour = colours();
    const narrow = place.clientWidth < 480;
    const picked = document.querySelector(`[data-picks="${id}"]`);
    const traces = picked ? spec.choices[Number(picked.value)] : spec.traces;
    const layout = axes(painted(spec.layout, colour), colour);
    Plotly.react(place, painted(traces, colour), {
      height: spec.height, autosize: true, dragmode: false,
      margin: { l: narrow ? 48 : 60, r: 20, t: 24, b: 48 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("text"), size: narrow ? 11 : 13, family: "system-ui, sans-serif" },
      hoverlabel: { bgcolor: colour("page"), bordercolor: colour("line"),
        font: { color: colour("text") } },
      hovermode: "closest", ...layout,
    }, { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false });
    drawn.add(id);
  };

  // The plotting library is most of the page: it runs only after the text is readable.
  const withPlotly = () => {
    if (window.Plotly) return;
    const script = document.createElement("script");
    script.textContent = document.getElementById("plotly").textContent;
    document.head.append(script);
  };

  const all = () => Object.keys(figures).forEach(draw);
  const again = () => drawn.forEach(draw);
  const start = () => {
    withPlotly();
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting || drawn.has(entry.target.id)) continue;
        seen.unobserve(entry.target);
        draw(entry.target.id);
      }
    }, { rootMargin: "400px" });
    Object.keys(figures).forEach((id) => seen.observe(document.getElementById(id)));
  };
  window.addEventListener("load", () => setTimeout(start, 0));
  window.addEventListener("beforeprint", () => { withPlotly(); all(); });
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    window.matchMedia(query).addEventListener("change", again);
  }

  for (const control of document.querySelectorAll("[data-picks]")) {
    control.addEventListener("input", () => {
      const shown = document.querySelector(`output[for="${control.id}"]`);
      const words = control.dataset.words ? JSON.parse(control.dataset.words) : null;
      if (shown && words) {
        shown.textContent = words[Number(control.value)];
        control.setAttribute("aria-valuetext", shown.textContent);
      }
      draw(control.dataset.picks);
    });
  }

  for (const control of document.querySelectorAll("[data-says]")) {
    const lines = JSON.parse(control.dataset.says);
    const say = (words) => {
      document.querySelector(`output[for="${control.id}"]`).textContent = words;
      control.setAttribute("aria-valuetext", words);
    };
    const goal = document.querySelector(`[data-moves="${control.id}"]`);
    control.addEventListener("input", () => {
      say(lines[Number(control.value)]);
      if (goal) goal.value = "";
    });
    goal?.addEventListener("input", () => {
      const { at, words } = goal.selectedOptions[0].dataset;
      if (at) control.value = at; // rounded to a step: the words have the threshold itself
      say(words || lines[Number(control.value)]);
    });
    say(lines[Number(control.value)]);
  }

  const value = (row, column) => {
    const raw = row.children[column].dataset.value;
    if (raw === undefined) return row.children[column].textContent;
    return raw === "" ? NaN : Number(raw.replace("inf", "Infinity"));
  };
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const column = [...head.parentNode.children].indexOf(head);
      const up = head.getAttribute("aria-sort") !== "ascending";
      const body = head.closest("table").tBodies[0];
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a, column), value(b, column)];
        if (typeof x === "string") return up ? x.localeCompare(y) : y.localeCompare(x);
        if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
        return x === y ? 0 : up ? x - y : y - x;
      });
      body.append(...rows);
      for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const live = document.getElementById("status");
      live.textContent = `Sorted by ${button.textContent}, ${up ? "ascending" : "descending"}.`;
    });
  }
})();

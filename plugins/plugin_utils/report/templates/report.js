(function () {
"use strict";
/* Everything that came from a node is put on the page with textContent or createTextNode; nothing here builds markup out of text. */
var D = JSON.parse(document.getElementById("data").textContent);
var S = D.strings, CHECKS = D.checks, NODES = D.nodes, ROWS = D.rows;
var N = { name: 0, verdict: 1, recorded: 2, costume: 3, gpus: 4, driver: 5, kernel: 6, address: 7, unreachable: 8, topo: 9 };
var VERDICTS = ["blocked", "unknown", "unreachable", "warn", "ready"];
var STATUSES = ["fail", "unknown", "warn", "pass", "skip"];
var LEVELS = ["Failed, blocks", "Unknown, blocks", "Worth a look", "Unknown, does not block", "For information"];
var NUL = "\u0000";

var V = D.variants.map(function (v) {
  return { check: v[0], status: v[1], severity: v[2], rank: v[3], assumed: !!v[4], observed: S[v[5]], required: S[v[6]], read: S[v[7]], why: S[v[8]], fix: S[v[9]], source: S[v[10]] };
});
function mark(v) {
  if (v.status === "pass") return v.assumed ? "assumed" : "pass";
  if (v.status === "skip") return "skip";
  if (v.rank === 4) return "info";
  if (v.status === "unknown") return v.rank === 1 ? "unknown" : "hazy";
  return v.rank === 0 ? "fail" : "warn";
}
function state(v) {
  if (v.status === "pass") return v.assumed ? "pass, assumed and not looked at" : "pass";
  if (v.status === "skip") return "does not apply";
  return LEVELS[v.rank].toLowerCase();
}
function area(id) { var dot = id.indexOf("."); return dot < 0 ? id : id.slice(0, dot); }

/* ---- small helpers ---- */
function add(parent, children) {
  children.forEach(function (child) {
    if (child === null || child === undefined || child === false) return;
    if (Array.isArray(child)) add(parent, child);
    else parent.appendChild(typeof child === "object" ? child : document.createTextNode(String(child)));
  });
  return parent;
}
function h(tag, attributes) {
  var element = document.createElement(tag);
  Object.keys(attributes || {}).forEach(function (key) {
    var value = attributes[key];
    if (value === null || value === undefined || value === false) return;
    if (typeof value === "function") element.addEventListener(key, value);
    else element.setAttribute(key, value === true ? "" : String(value));
  });
  return add(element, Array.prototype.slice.call(arguments, 2));
}
function svg(tag, attributes) {
  var element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  Object.keys(attributes || {}).forEach(function (key) { element.setAttribute(key, String(attributes[key])); });
  return add(element, Array.prototype.slice.call(arguments, 2));
}
function m(kind) { return h("i", { class: "m " + kind, "aria-hidden": "true" }); }
function clear(element) { while (element.firstChild) element.removeChild(element.firstChild); return element; }
function plural(count, word) { return count.toLocaleString("en") + " " + word + (count === 1 ? "" : "s"); }
function fold(names, most) {
  /* Runs of consecutive numbers as first..last; the rest is counted. */
  var parts = [], run = [];
  function tail(name) { var found = /^(.*?)(\d{1,15})$/.exec(name); return found; }
  function close() {
    if (run.length > 2) parts.push([run[0] + ".." + tail(run[run.length - 1])[2], run.length]);
    else run.forEach(function (name) { parts.push([name, 1]); });
    run = [];
  }
  names.forEach(function (name) {
    if (run.length) {
      var before = tail(run[run.length - 1]), here = tail(name);
      if (!(before && here && before[1] === here[1] && +here[2] === +before[2] + 1 && (before[2].length === here[2].length || before[2][0] !== "0"))) close();
    }
    run.push(name);
  });
  close();
  var shown = parts.slice(0, most), count = shown.reduce(function (sum, part) { return sum + part[1]; }, 0);
  return shown.map(function (part) { return part[0]; }).join(", ") + (names.length > count ? " and " + (names.length - count) + " more" : "");
}
function copy(text) {
  var button = h("button", { class: "copy", type: "button", click: function (event) {
    event.stopPropagation();
    function done() { button.textContent = "Copied"; setTimeout(function () { button.textContent = "Copy"; }, 1400); }
    function old() {
      var area = h("textarea", { "aria-hidden": "true", style: "position:fixed;opacity:0" });
      area.value = text; document.body.appendChild(area); area.select();
      try { if (document.execCommand("copy")) done(); } finally { area.remove(); }
    }
    /* A page opened from a file may have no clipboard interface. */
    if (navigator.clipboard && navigator.clipboard.writeText) navigator.clipboard.writeText(text).then(done, old); else old();
  } }, "Copy");
  return button;
}
function link(url) {
  return /^https?:\/\//i.test(url) ? h("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, url) : h("span", {}, url);
}
function nameOf(index) { return index < 0 ? "whole cluster" : NODES[index][N.name]; }
function command(text) {
  /* A line may break between words only, never inside --limit. */
  var code = h("code", {});
  text.split(" ").forEach(function (word, position) { if (position) code.appendChild(document.createTextNode(" ")); code.appendChild(h("span", {}, word)); });
  return code;
}
function fixView(fix, nodes) {
  /* Sentence, with every call between backticks on a line of its own behind the copy button. */
  if (!fix) return null;
  var names = nodes.filter(function (n) { return n >= 0; }).map(nameOf);
  var all = names.join(","), short = names.length > 4 ? names.slice(0, 2).join(",") + ",…" : all;
  var pieces = fix.split("`"), box = h("div", { class: "fix" }), sentence = h("p", {}), calls = [];
  if (pieces.length % 2 === 0) pieces = [fix];
  pieces.forEach(function (piece, position) {
    var shown = piece.split(NUL).join(short);
    if (position % 2 === 0) { sentence.appendChild(document.createTextNode(shown)); return; }
    if (/^ansible-playbook\s/.test(piece)) {
      var last = /^\s*\.?\s*$/.test(pieces.slice(position + 1).join(""));
      calls.push(h("div", { class: "call" }, command(shown), copy(piece.split(NUL).join(all))));
      if (last && calls.length === 1) {
        if (sentence.lastChild) sentence.lastChild.textContent = sentence.lastChild.textContent.replace(/[\s:]*$/, ":");
        pieces.length = position + 1; /* forEach does not visit what is gone: the full stop */
      } else sentence.appendChild(document.createTextNode("the call below"));
    } else sentence.appendChild(h("code", {}, shown));
  });
  box.appendChild(sentence);
  if (names.length > 4 && calls.length && fix.indexOf(NUL) >= 0) calls.push(h("p", { class: "kind" }, "Copy takes all " + names.length + " nodes."));
  return add(box, calls);
}

/* ---- findings by check and weight ---- */
var where = V.map(function () { return []; });
ROWS.forEach(function (row, n) { row.forEach(function (v) { where[v].push(n); }); });
D.cluster.forEach(function (v) { where[v].push(-1); });
var groups = [], byKey = Object.create(null);
V.forEach(function (v, index) {
  if (v.rank === 9) return;
  var key = v.check + "/" + v.status + "/" + v.severity;
  if (!byKey[key]) { byKey[key] = { check: v.check, status: v.status, rank: v.rank, mark: mark(v), variants: [] }; groups.push(byKey[key]); }
  byKey[key].variants.push(index);
});
groups.forEach(function (g) {
  g.variants.sort(function (a, b) { return where[b].length - where[a].length; });
  g.count = g.variants.reduce(function (sum, v) { return sum + where[v].length; }, 0);
});
groups.sort(function (a, b) { return a.rank - b.rank || b.count - a.count; });

/* ---- columns: checks that some node has; the cluster's own are listed apart ---- */
var onNodes = CHECKS.map(function () { return false; }), worst = CHECKS.map(function () { return 9; });
V.forEach(function (v, index) {
  worst[v.check] = Math.min(worst[v.check], v.rank);
  if (where[index].some(function (n) { return n >= 0; })) onNodes[v.check] = true;
});
var AREAS = [];
CHECKS.forEach(function (c, index) { if (onNodes[index] && AREAS.indexOf(area(c[0])) < 0) AREAS.push(area(c[0])); });
var COLUMNS = [];
AREAS.forEach(function (name) { CHECKS.forEach(function (c, index) { if (onNodes[index] && area(c[0]) === name) COLUMNS.push(index); }); });
var CELLS = ROWS.map(function (row) {
  var cells = new Int32Array(CHECKS.length).fill(-1);
  row.forEach(function (v) { var c = V[v].check; if (cells[c] < 0 || V[v].rank < V[cells[c]].rank) cells[c] = v; });
  return cells;
});

/* ---- state of the filters ---- */
var want = { q: "", statuses: [], verdicts: [], area: "", only: false, sort: NODES.length > 24 ? "worst" : "rank" };
var matchV = null, matchN = null;
function words(text) { return text.toLowerCase().split(/\s+/).filter(Boolean); }
function refresh() {
  var terms = words(want.q);
  function has(text) { text = text.toLowerCase(); return terms.every(function (term) { return text.indexOf(term) >= 0; }); }
  matchV = V.map(function (v) {
    var c = CHECKS[v.check];
    return !terms.length || has(c[0] + " " + c[1] + " " + v.status + " " + v.observed + " " + v.required + " " + v.why + " " + v.fix);
  });
  matchN = NODES.map(function (node) {
    return !terms.length || has([node[N.name], node[N.verdict], node[N.gpus], node[N.driver], node[N.kernel], node[N.address], node[N.costume]].join(" "));
  });
}
function statusOk(v) { return !want.statuses.length || want.statuses.indexOf(v.status) >= 0; }
function areaOk(check) { return !want.area || area(CHECKS[check][0]) === want.area; }
function verdictOk(n) { return n < 0 || !want.verdicts.length || want.verdicts.indexOf(NODES[n][N.verdict]) >= 0; }
function shown(v, n) {
  /* Does the finding `v` of node `n` (-1: cluster) pass all filters? */
  return statusOk(V[v]) && areaOk(V[v].check) && verdictOk(n) && (n < 0 && want.verdicts.length ? false : true) && (matchV[v] || (n >= 0 && matchN[n]));
}
function filtering() { return !!(want.q || want.statuses.length || want.verdicts.length || want.area); }

/* ---- frame ---- */
var app = document.getElementById("app");
var verdict = D.summary.verdict;
var ui = {};
function context() {
  var list = h("dl", { class: "context" }, h("div", {}, h("dt", {}, "profile"), h("dd", {}, D.profile)));
  ["hardware", "strategy", "interconnect", "variant"].forEach(function (key) {
    var guess = D.assumed[key];
    list.appendChild(h("div", {}, h("dt", {}, key), h("dd", {}, h("span", { class: guess ? "guess" : null, title: guess || null }, D.context[key] || "not known"), guess && h("span", { class: "tag" }, "assumed"))));
  });
  return list;
}
function tiles() {
  return h("div", { class: "tiles", role: "group", "aria-label": "Nodes by verdict" }, VERDICTS.filter(function (word) { return D.summary.nodes[word]; }).map(function (word) {
    return h("button", { class: "tile", type: "button", "aria-pressed": "false", "data-verdict": word, click: function (event) { toggle(want.verdicts, word, event.currentTarget); } },
      h("b", {}, D.summary.nodes[word].toLocaleString("en")), h("span", {}, m(word), word));
  }));
}
function toggle(list, word, button) {
  var at = list.indexOf(word);
  if (at >= 0) list.splice(at, 1); else list.push(word);
  button.setAttribute("aria-pressed", String(at < 0));
  update();
}
function strip() {
  if (NODES.length <= 24 || NODES.length > 3000) return null;
  return h("div", { class: "strip", role: "group", "aria-label": "All nodes in rank order" }, NODES.map(function (node, n) {
    return h("button", { type: "button", tabindex: n ? "-1" : "0", title: node[N.name] + ": " + node[N.verdict], "aria-label": node[N.name] + ", " + node[N.verdict], "data-node": n }, m(node[N.verdict]));
  }));
}
function bar() {
  ui.q = h("input", { type: "search", placeholder: "Filter by node, check or text   ( / )", "aria-label": "Filter by text", input: function () { want.q = ui.q.value; update(); } });
  ui.area = h("select", { "aria-label": "Area", change: function () { want.area = ui.area.value; update(); } }, h("option", { value: "" }, "All areas"));
  var every = AREAS.slice();
  CHECKS.forEach(function (c) { if (every.indexOf(area(c[0])) < 0) every.push(area(c[0])); });
  add(ui.area, every.map(function (name) { return h("option", { value: name }, name); }));
  var counts = D.summary.findings || {};
  ui.chips = h("div", { class: "chips", role: "group", "aria-label": "Status" }, STATUSES.filter(function (word) { return counts[word]; }).map(function (word) {
    return h("button", { class: "chip", type: "button", "aria-pressed": "false", click: function (event) { toggle(want.statuses, word, event.currentTarget); } },
      m(word), word, h("span", { class: "muted" }, counts[word].toLocaleString("en")));
  }));
  ui.reset = h("button", { class: "link", type: "button", hidden: true, click: reset }, "Clear filters");
  ui.says = h("span", { class: "says", role: "status" });
  var jump = h("nav", { class: "jump", "aria-label": "Parts of the report" }, [["blocks", "Blocks"], ["cluster", "Across nodes"], ["matrix", "Matrix"], ["topology", "Topology"]].map(function (item) {
    /* The address keeps what is open in the details, so these are no links. */
    return h("button", { class: "link", type: "button", click: function () { document.getElementById(item[0]).scrollIntoView(); } }, item[1]);
  }));
  return h("div", { class: "bar", role: "search" }, ui.q, ui.chips, ui.area, ui.reset, ui.says, jump);
}
function reset() {
  want.q = ui.q.value = ""; want.area = ui.area.value = ""; want.statuses.length = want.verdicts.length = 0;
  app.querySelectorAll(".chip, .tile").forEach(function (button) { button.setAttribute("aria-pressed", "false"); });
  update();
}
var recorded = NODES.filter(function (node) { return node[N.recorded]; }).length, dressed = NODES.filter(function (node) { return node[N.costume]; }).length;
var remarks = [];
if (recorded) remarks.push(recorded === NODES.length ? "all nodes are recorded, not live" : plural(recorded, "node") + " recorded, not live");
if ((D.context.left_out || []).length) remarks.push(plural(D.context.left_out.length, "node") + " of the inventory left out by --limit");
if (dressed) remarks.push(plural(dressed, "node") + " dressed as other hardware");
var top = h("header", { class: "top" },
  h("div", {},
    h("div", { class: "eyebrow" }, h("span", { class: "word " + verdict }, verdict), h("span", {}, "Preflight, " + D.generated_at.replace("T", " ").replace("Z", " UTC")), remarks.length ? h("span", {}, remarks.join(", ")) : null),
    h("h1", {}, D.headline), context(),
    Object.keys(D.assumed).length ? h("div", { class: "guesses" }, Object.keys(D.assumed).map(function (key) { return h("div", {}, "Assumed " + key + ": " + D.assumed[key]); })) : null),
  tiles());
ui.blocks = h("section", { id: "blocks" });
ui.cluster = h("section", { id: "cluster" });
ui.notes = h("section", { id: "notes" });
ui.matrix = h("section", { id: "matrix" });
ui.topos = h("section", { id: "topology" });
ui.drawer = h("aside", { class: "drawer", hidden: true, tabindex: "-1", "aria-label": "Details" });
app.appendChild(h("div", { class: "wrap" }, top, strip(), bar(), h("main", {}, ui.blocks, ui.cluster, ui.notes, ui.matrix, ui.topos),
  h("footer", {}, "inferops.vllm preflight. Same content for machines: preflight.json, preflight.junit.xml; for tickets: preflight.md.")));
app.appendChild(ui.drawer);

/* ---- lists ---- */
function nodeButton(n) { return h("button", { class: "node", type: "button", "data-open": n }, nameOf(n)); }
function isAll(nodes) { return NODES.length > 1 && nodes.length === NODES.length && nodes[0] >= 0; }
function who(nodes, check) {
  if (isAll(nodes)) return h("div", { class: "who" }, h("span", { class: "kind" }, "all " + NODES.length + " nodes"));
  if (nodes.length <= 8) return h("div", { class: "who" }, nodes.map(function (n) { return n < 0 ? h("span", { class: "kind" }, "whole cluster") : h("button", { class: "node", type: "button", "data-open": n, "data-check": check >= 0 ? check : null }, nameOf(n)); }));
  return h("div", { class: "who" }, h("span", { class: "kind" }, plural(nodes.length, "node") + ": " + fold(nodes.map(nameOf), 4)));
}
function said(v) {
  return h("dl", { class: "said" }, h("dt", {}, v.status === "unknown" ? "unknown" : "is"), h("dd", { class: "is" }, v.observed || "–", v.assumed && h("span", { class: "tag" }, "assumed")),
    v.required ? [h("dt", {}, "required"), h("dd", {}, v.required)] : null);
}
function problem(g) {
  var check = CHECKS[g.check], live = [];
  g.variants.forEach(function (v) {
    var nodes = taken[v] ? [] : where[v].filter(function (n) { return shown(v, n); });
    if (nodes.length) live.push([v, nodes]);
  });
  if (!live.length) return null;
  var all = [];
  live.forEach(function (item) { add2(all, item[1]); });
  var first = V[live[0][0]], oneFix = live.every(function (item) { return V[item[0]].fix === first.fix; });
  var body = h("div", {}), limit = live.length > 6 ? 5 : live.length;
  var oneNeed = live.every(function (item) { return V[item[0]].required === first.required; });
  if (live.length === 1) body.appendChild(said(first));
  else {
    live.slice(0, limit).forEach(function (item) {
      var v = V[item[0]];
      body.appendChild(h("div", { class: "value-of" }, item[1].length === 1 ? h("button", { class: "node", type: "button", "data-open": item[1][0], "data-check": g.check }, nameOf(item[1][0])) : h("span", { class: "node" }, fold(item[1].map(nameOf), 1)),
        h("span", {}, h("b", {}, v.observed || "–"), oneNeed || !v.required ? null : h("span", { class: "muted" }, "  → " + v.required))));
    });
    if (live.length > limit) body.appendChild(h("p", { class: "why" }, "and " + plural(live.length - limit, "other value") + ", all in the matrix"));
    if (oneNeed && first.required) body.appendChild(h("dl", { class: "said" }, h("dt", {}, "required"), h("dd", {}, first.required)));
  }
  if (first.why) body.appendChild(h("p", { class: "why" }, first.why));
  var fixes = h("div", {});
  if (oneFix) add(fixes, [fixView(first.fix, all)]);
  else live.slice(0, limit).forEach(function (item) { add(fixes, [fixView(V[item[0]].fix, item[1])]); });
  return h("article", { class: "prob", "data-id": check[0] }, m(g.mark),
    h("div", {}, h("h3", {}, h("button", { type: "button", "data-open": all[0], "data-check": g.check }, check[0])),
      h("div", { class: "kind" }, (check[1] ? check[1] + ". " : "") + LEVELS[g.rank]), who(all, g.check)), body, fixes);
}
function unread(rank) {
  /* One reason, such as a hung nvidia-smi, that hides several checks on the same nodes is one entry. Marks what it takes in `taken`. */
  var by = Object.create(null), keys = [];
  groups.forEach(function (g) {
    if (g.rank !== rank || area(CHECKS[g.check][0]) === "drift") return;
    g.variants.forEach(function (v) {
      var nodes = where[v].filter(function (n) { return shown(v, n); });
      if (!nodes.length) return;
      var key = V[v].observed + NUL + nodes.join(",");
      if (!by[key]) { by[key] = { nodes: nodes, list: [] }; keys.push(key); }
      by[key].list.push(v);
    });
  });
  return keys.filter(function (key) { return by[key].list.length > 1; }).map(function (key) {
    var list = by[key].list, nodes = by[key].nodes;
    list.forEach(function (v) { taken[v] = true; });
    return h("article", { class: "prob", "data-id": "unread" }, m(mark(V[list[0]])),
      h("div", {}, h("h3", { class: "text" }, plural(list.length, "check") + " could not be looked at"), h("div", { class: "kind" }, LEVELS[rank]), who(nodes, -1)),
      h("div", {}, h("dl", { class: "said" }, h("dt", {}, "because"), h("dd", { class: "is" }, V[list[0]].observed || "–")),
        h("div", { class: "who" }, list.map(function (v) { return h("button", { class: "node", type: "button", "data-open": nodes[0], "data-check": V[v].check }, CHECKS[V[v].check][0]); }))),
      fixView("Clear that reason, then look again with `ansible-playbook inferops.vllm.preflight --limit " + NUL + "`.", nodes));
  });
}
var taken = Object.create(null);
function add2(list, more) { more.forEach(function (item) { if (list.indexOf(item) < 0) list.push(item); }); }
function lists() {
  var blocks = [], notes = [], hidden = [];
  taken = Object.create(null);
  var unknownBlocks = unread(1), unknownNotes = unread(3);
  groups.forEach(function (g) {
    if (g.rank > 1 && area(CHECKS[g.check][0]) === "drift") return;
    var item = problem(g);
    if (item) (g.rank === 0 ? blocks : g.rank === 1 ? hidden : notes).push(item);
  });
  blocks = blocks.concat(unknownBlocks, hidden);
  notes = notes.concat(unknownNotes);
  clear(ui.blocks);
  add(ui.blocks, [h("div", { class: "head" }, h("h2", {}, "What blocks, and which call mends it"), h("span", { class: "muted" }, blocks.length ? blocks.length + (blocks.length === 1 ? " entry" : " entries") : "")),
    h("div", { class: "panel" }, blocks.length ? blocks : h("p", { class: "empty" }, filtering() ? "No blocker matches the filters." : NODES.length ? "Nothing blocks." : "No node was judged."))]);
  clear(ui.notes);
  ui.notes.hidden = !notes.length;
  if (notes.length) {
    ui.notes.appendChild(h("details", { class: "more panel", open: notes.length <= 8 }, h("summary", {}, "Worth a look: " + notes.length), notes));
  }
  drift();
}
function drift() {
  var rows = [], same = [], others = [];
  V.forEach(function (v, index) {
    var id = CHECKS[v.check][0], nodes = where[index].filter(function (n) { return shown(index, n); });
    var isDrift = area(id) === "drift";
    if (!nodes.length || (!isDrift && nodes[0] >= 0)) return;
    if (v.rank === 9) { if (isDrift && v.status === "pass") { if (same.indexOf(id) < 0) same.push(id); } else if (!isDrift && v.status === "pass") others.push([v, nodes]); return; }
    if (!isDrift) return;
    var row = rows.find(function (item) { return item[0].check === v.check; });
    if (!row) rows.push(row = [v, nodes, []]);
    if (v.rank < row[0].rank) { row[0] = v; row[1] = nodes; }
    row[2].push((nodes[0] >= 0 ? fold(nodes.map(nameOf), 4) + ": " : "") + v.observed + (nodes[0] >= 0 && v.required ? " → " + v.required : ""));
  });
  rows.sort(function (a, b) { return a[0].rank - b[0].rank; });
  var odd = rows.map(function (item) { return CHECKS[item[0].check][0]; });
  same = same.filter(function (id) { return odd.indexOf(id) < 0; });
  function line(item) {
    var v = item[0], told = item[2] || [v.observed];
    if (told.length > 4) told = told.slice(0, 4).concat("and " + plural(told.length - 4, "other value"));
    return h("button", { class: "drift", type: "button", "data-open": item[1][0], "data-check": v.check }, m(mark(v)), h("span", { class: "mono" }, CHECKS[v.check][0]), h("span", {}, told.join("; ")));
  }
  clear(ui.cluster);
  ui.cluster.hidden = !rows.length && !same.length && !others.length;
  add(ui.cluster, [h("div", { class: "head" }, h("h2", {}, "Across nodes"),
    h("span", { class: "muted" }, same.length && NODES.length > 1 ? "No difference in " + same.map(function (id) { return id.replace(/^drift\./, ""); }).join(", ") : "")),
    rows.length || others.length ? h("div", { class: "panel" }, rows.map(line), others.map(line)) : h("div", { class: "panel" }, h("p", { class: "empty" }, NODES.length > 1 ? "All nodes agree in what was compared." : "One node: nothing to compare."))]);
}

/* ---- matrix: only the rows in view exist ---- */
var ROW = 28, NAME = 210, order = [], columns = [], colW = 24, alive = Object.create(null), cursor = { r: 0, c: -1 }, printing = false;
var longest = NODES.reduce(function (most, node) { return Math.max(most, node[N.name].length); }, 4);
NAME = Math.max(150, Math.min(300, longest * 8 + 136));
ui.readout = h("div", { class: "readout", "aria-live": "off" });
ui.grid = h("div", { class: "grid panel", role: "grid", "aria-label": "Nodes and checks", tabindex: "-1" });
ui.ghead = h("div", { class: "ghead" });
ui.inner = h("div", { class: "inner" });
ui.only = h("button", { class: "chip", type: "button", "aria-pressed": "false", click: function () { want.only = !want.only; ui.only.setAttribute("aria-pressed", String(want.only)); matrix(); } }, "Only columns with findings");
ui.sort = h("select", { "aria-label": "Order of nodes", change: function () { want.sort = ui.sort.value; matrix(); } },
  h("option", { value: "rank" }, "Rank order"), h("option", { value: "worst" }, "Worst first"), h("option", { value: "name" }, "By name"));
ui.sort.value = want.sort;
ui.mcount = h("span", { class: "muted" });
add(ui.matrix, [h("div", { class: "head" }, h("h2", {}, "Nodes and checks"), ui.mcount, h("span", { class: "says chips" }, ui.only, h("span", { class: "chip", style: "padding:0 4px" }, ui.sort))), ui.readout, ui.grid,
  h("div", { class: "legend" }, [["fail", "failed, blocks"], ["warn", "worth a look"], ["unknown", "unknown, blocks"], ["hazy", "unknown"], ["pass", "pass"], ["assumed", "pass, assumed"], ["skip", "does not apply"]].map(function (item) { return h("span", {}, m(item[0]), item[1]); }))]);
add(ui.grid, [ui.ghead, ui.inner]);
ui.sort.style.cssText = "border:0;background:none;min-height:26px";

function matrix() {
  columns = COLUMNS.filter(function (c) { return areaOk(c) && (!want.only || worst[c] < 9); });
  order = [];
  NODES.forEach(function (node, n) {
    if (!verdictOk(n)) return;
    if (!filtering()) { order.push(n); return; }
    var cells = CELLS[n], any = matchN[n] && !want.statuses.length && !want.area;
    for (var i = 0; !any && i < columns.length; i++) any = cells[columns[i]] >= 0 && shown(cells[columns[i]], n);
    if (any) order.push(n);
  });
  if (want.sort === "worst") {
    var weight = NODES.map(function (node, n) {
      var sum = (VERDICTS.length - VERDICTS.indexOf(node[N.verdict])) * 100000;
      ROWS[n].forEach(function (v) { if (V[v].rank < 9) sum += [1000, 900, 10, 5, 1][V[v].rank] || 0; });
      return sum;
    });
    order.sort(function (a, b) { return weight[b] - weight[a] || a - b; });
  } else if (want.sort === "name") {
    order.sort(function (a, b) { return NODES[a][N.name].localeCompare(NODES[b][N.name], "en", { numeric: true }); });
  }
  var room = (ui.grid.clientWidth || 1200) - NAME - 2;
  colW = Math.max(18, Math.min(36, Math.floor(room / Math.max(1, columns.length))));
  header();
  ui.inner.style.height = order.length * ROW + "px";
  ui.inner.style.width = NAME + columns.length * colW + "px";
  ui.grid.setAttribute("aria-rowcount", order.length + 1);
  ui.grid.setAttribute("aria-colcount", columns.length + 1);
  ui.mcount.textContent = (order.length === NODES.length ? plural(NODES.length, "node") : order.length.toLocaleString("en") + " of " + plural(NODES.length, "node")) + ", " + plural(columns.length, "check");
  Object.keys(alive).forEach(function (key) { alive[key].remove(); });
  alive = Object.create(null);
  cursor.r = Math.min(cursor.r, Math.max(0, order.length - 1));
  cursor.c = Math.min(cursor.c, columns.length - 1);
  paint();
  ui.readout.textContent = order.length ? "Point at a cell, or move with the arrow keys; Enter opens the details." : NODES.length ? "No node matches the filters." : "";
}
function firstOf(position) { return position === 0 || area(CHECKS[columns[position]][0]) !== area(CHECKS[columns[position - 1]][0]); }
function header() {
  clear(ui.ghead);
  ui.ghead.style.width = NAME + columns.length * colW + "px";
  var areas = h("div", { class: "areas", "aria-hidden": "true" }, h("div", { class: "corner", style: "width:" + NAME + "px" }));
  var labels = h("div", { class: "labels", role: "row", "aria-rowindex": "1" }, h("div", { class: "corner", role: "columnheader", style: "width:" + NAME + "px" }, "node"));
  var spans = Object.create(null), longestLabel = 8;
  columns.forEach(function (c) { var name = area(CHECKS[c][0]); spans[name] = (spans[name] || 0) + 1; });
  columns.forEach(function (c, position) {
    var id = CHECKS[c][0], name = area(id), wide = spans[name] * colW >= name.length * 6.4 + 6;
    longestLabel = Math.max(longestLabel, wide ? id.length - name.length - 1 : id.length);
    if (firstOf(position)) areas.appendChild(h("span", { style: "flex:none;width:" + spans[name] * colW + "px" }, wide ? name : ""));
    labels.appendChild(h("div", {
      class: "label" + (firstOf(position) ? " first" : "") + (worst[c] === 0 ? " block" : worst[c] === 1 ? " unsure" : worst[c] < 4 ? " note" : ""),
      role: "columnheader", title: id + (CHECKS[c][1] ? ": " + CHECKS[c][1] : ""), style: "width:" + colW + "px", "data-c": position
    }, wide ? id.slice(name.length + 1) || id : id));
  });
  labels.style.height = Math.min(230, Math.round(longestLabel * 7 + 18)) + "px";
  add(ui.ghead, [areas, labels]);
}
function line(r) {
  var n = order[r], node = NODES[n], cells = CELLS[n], busy = filtering();
  var row = h("div", { class: "row", role: "row", "aria-rowindex": r + 2, style: "transform:translateY(" + r * ROW + "px);width:" + (NAME + columns.length * colW) + "px" },
    h("button", { class: "name", type: "button", role: "rowheader", tabindex: cursor.r === r && cursor.c < 0 ? "0" : "-1", style: "width:" + NAME + "px", "data-r": r, "data-c": "-1", title: node[N.name], "aria-label": node[N.name] + ", " + node[N.verdict] },
      m(node[N.verdict]), h("span", {}, node[N.name]), h("em", {}, node[N.verdict])));
  for (var i = 0; i < columns.length; i++) {
    var v = cells[columns[i]];
    var cell = document.createElement("div");
    cell.className = "cell" + (firstOf(i) ? " first" : "") + (v >= 0 && busy && !shown(v, n) ? " dim" : "");
    cell.setAttribute("role", "gridcell");
    cell.setAttribute("tabindex", cursor.r === r && cursor.c === i ? "0" : "-1");
    cell.setAttribute("data-r", r); cell.setAttribute("data-c", i);
    cell.setAttribute("aria-label", node[N.name] + " " + CHECKS[columns[i]][0] + ": " + (v < 0 ? "not looked at" : state(V[v])));
    cell.style.width = colW + "px";
    if (v >= 0) { var sign = document.createElement("i"); sign.className = "m " + mark(V[v]); cell.appendChild(sign); }
    row.appendChild(cell);
  }
  return row;
}
function paint() {
  var top = Math.max(0, ui.grid.scrollTop), height = ui.grid.clientHeight || 700;
  var from = Math.max(0, Math.floor(top / ROW) - 10), to = Math.min(order.length, Math.ceil((top + height) / ROW) + 10);
  if (printing) { from = 0; to = Math.min(order.length, 400); }
  Object.keys(alive).forEach(function (key) {
    var r = +key;
    if ((r < from || r >= to) && alive[key] !== document.activeElement && !alive[key].contains(document.activeElement)) { alive[key].remove(); delete alive[key]; }
  });
  var fragment = document.createDocumentFragment();
  for (var r = from; r < to; r++) if (!alive[r]) { alive[r] = line(r); fragment.appendChild(alive[r]); }
  ui.inner.appendChild(fragment);
}
var pending = false;
ui.grid.addEventListener("scroll", function () {
  if (pending) return;
  pending = true;
  requestAnimationFrame(function () { pending = false; paint(); });
});
window.addEventListener("resize", function () { matrix(); });
window.addEventListener("beforeprint", function () { printing = true; paint(); });
window.addEventListener("afterprint", function () { printing = false; matrix(); });
function place(target) { var cell = target.closest && target.closest("[data-r]"); return cell ? { r: +cell.getAttribute("data-r"), c: +cell.getAttribute("data-c"), cell: cell } : null; }
function read(at) {
  var n = order[at.r];
  clear(ui.readout);
  ui.ghead.querySelectorAll(".here").forEach(function (label) { label.classList.remove("here"); });
  if (at.c < 0) { add(ui.readout, [h("b", {}, NODES[n][N.name]), "  " + NODES[n][N.verdict] + "  " + [NODES[n][N.gpus], NODES[n][N.driver], NODES[n][N.address]].filter(Boolean).join(" · ")]); return; }
  var label = ui.ghead.querySelector('.label[data-c="' + at.c + '"]'), v = CELLS[n][columns[at.c]];
  if (label) label.classList.add("here");
  add(ui.readout, [h("b", {}, NODES[n][N.name]), "  ", h("b", {}, CHECKS[columns[at.c]][0]), "  ", v < 0 ? "not looked at" : state(V[v]) + (V[v].observed ? ": " + V[v].observed : "") + (V[v].required && V[v].rank < 9 ? " → " + V[v].required : "")]);
}
ui.grid.addEventListener("mouseover", function (event) { var at = place(event.target); if (at) read(at); });
ui.grid.addEventListener("focusin", function (event) { var at = place(event.target); if (at) read(at); });
ui.grid.addEventListener("click", function (event) {
  var at = place(event.target);
  if (!at) return;
  cursor = { r: at.r, c: at.c };
  go(order[at.r], at.c < 0 ? -1 : columns[at.c]);
});
ui.grid.addEventListener("keydown", function (event) {
  var at = place(event.target);
  if (!at) return;
  var r = at.r, c = at.c, page = Math.max(1, Math.floor(ui.grid.clientHeight / ROW) - 8);
  if (event.key === "ArrowDown") r++;
  else if (event.key === "ArrowUp") r--;
  else if (event.key === "ArrowRight") c++;
  else if (event.key === "ArrowLeft") c--;
  else if (event.key === "PageDown") r += page;
  else if (event.key === "PageUp") r -= page;
  else if (event.key === "Home") { if (event.ctrlKey) r = 0; c = -1; }
  else if (event.key === "End") { if (event.ctrlKey) r = order.length - 1; c = columns.length - 1; }
  else if ((event.key === "Enter" || event.key === " ") && c >= 0) { event.preventDefault(); go(order[r], columns[c]); return; }
  else return;
  event.preventDefault();
  focusCell(Math.max(0, Math.min(order.length - 1, r)), Math.max(-1, Math.min(columns.length - 1, c)));
});
function focusCell(r, c) {
  var before = alive[cursor.r] && alive[cursor.r].querySelector('[tabindex="0"]');
  if (before) before.setAttribute("tabindex", "-1");
  cursor = { r: r, c: c };
  var headHeight = ui.ghead.offsetHeight, y = r * ROW;
  if (y < ui.grid.scrollTop) ui.grid.scrollTop = y;
  if (y + ROW + headHeight > ui.grid.scrollTop + ui.grid.clientHeight) ui.grid.scrollTop = y + ROW + headHeight - ui.grid.clientHeight;
  if (c >= 0) {
    var x = c * colW, left = ui.grid.scrollLeft, room = ui.grid.clientWidth - NAME;
    if (x < left) ui.grid.scrollLeft = x;
    if (x + colW > left + room) ui.grid.scrollLeft = x + colW - room;
  }
  paint();
  var cell = alive[r] && alive[r].querySelector('[data-c="' + c + '"]');
  if (cell) { cell.setAttribute("tabindex", "0"); cell.focus({ preventScroll: true }); }
}

/* ---- topology ---- */
function parse(t) {
  var matrix = t.matrix.map(function (row) { return row.trim().split(/\s+/); });
  var ties = t.gpu_nic.map(function (row) { return row.trim().split(/\s+/); });
  var counts = Object.create(null), usual = "", pairs = 0;
  matrix.forEach(function (row, a) { row.forEach(function (cell, b) { if (a !== b && b < matrix.length) { pairs++; if (/^NV\d+$/.test(cell)) counts[cell] = (counts[cell] || 0) + 1; } }); });
  Object.keys(counts).forEach(function (cell) { if (!usual || counts[cell] > counts[usual]) usual = cell; });
  /* Only where most pairs are joined by NVLink is a pair without it a lost one. */
  if (usual && counts[usual] * 2 < pairs) usual = "";
  var lost = [];
  matrix.forEach(function (row, a) { row.forEach(function (cell, b) { if (usual && b > a && b < matrix.length && cell !== usual) lost.push([a, b, cell]); }); });
  var missing = Math.max(0, (D.context.gpus_per_node || 0) - t.gpus.length);
  return { matrix: matrix, ties: ties, usual: usual, lost: lost, missing: t.gpus.length ? missing : 0, nics: Object.keys(t.nics) };
}
var NEAR = ["PIX", "PXB", "PHB", "NODE", "SYS"];
function near(cell) { return cell === "PIX" || cell === "PXB"; }
function ring(t, p) {
  var total = t.gpus.length + p.missing, center = 150, r = 88, out = 130;
  var picture = svg("svg", { viewBox: "0 0 300 300", role: "img" });
  picture.appendChild(svg("title", {}, t.gpus.length + " GPUs" + (p.usual ? ", " + p.usual + " between them" : "") + (p.lost.length ? ", " + p.lost.length + " lost links" : "") + ", " + p.nics.length + " NICs"));
  function at(index, radius, shift) { var angle = (index / Math.max(1, total)) * 2 * Math.PI - Math.PI / 2 + (shift || 0); return [center + radius * Math.cos(angle), center + radius * Math.sin(angle)]; }
  var hurt = Object.create(null), isLost = Object.create(null);
  p.lost.forEach(function (item) { isLost[item[0] + "-" + item[1]] = true; hurt[item[0]] = (hurt[item[0]] || 0) + 1; hurt[item[1]] = (hurt[item[1]] || 0) + 1; });
  function wire(kind, a, b) { picture.appendChild(svg("line", { class: kind, x1: a[0], y1: a[1], x2: b[0], y2: b[1] })); }
  var a, b;
  for (a = 0; a < t.gpus.length; a++) for (b = a + 1; b < t.gpus.length; b++) if (p.usual && !isLost[a + "-" + b] && p.matrix[a] && p.matrix[a][b]) wire("nv", at(a, r), at(b, r));
  p.lost.forEach(function (item) { wire("lost", at(item[0], r), at(item[1], r)); });
  function box(spot, label, kind) {
    picture.appendChild(svg("rect", { class: kind, x: spot[0] - 21, y: spot[1] - 8, width: 42, height: 16, rx: 4 }));
    picture.appendChild(svg("text", { class: "small", x: spot[0], y: spot[1] }, label.length > 7 ? label.slice(0, 6) + "…" : label));
  }
  var home = Object.create(null), far = [];
  p.nics.forEach(function (nic, j) {
    var best = -1, how = 9;
    p.ties.forEach(function (row, g) { var rank = NEAR.indexOf(row[j]); if (g < t.gpus.length && rank >= 0 && rank < how) { how = rank; best = g; } });
    /* Across a host bridge no NIC belongs to a GPU: it stands between two, unconnected, as on Grace trays. */
    if (best < 0 || how > 1) { far.push(nic); return; }
    (home[best] = home[best] || []).push([nic, how]);
  });
  Object.keys(home).forEach(function (g) {
    var list = home[g].slice(0, 3), more = home[g].length - list.length;
    list.forEach(function (item, k) {
      var spot = at(+g, out, (k - (list.length - 1) / 2) * .27), name = t.nics[item[0]] || item[0];
      wire("tie", at(+g, r), spot);
      box(spot, more && k === list.length - 1 ? "+" + (more + 1) : name, "nic");
    });
  });
  far.slice(0, total).forEach(function (nic, k) {
    box(at(far.length <= total ? Math.floor(k * total / far.length) + .5 : k + .5, out, 0), far.length > total && k === total - 1 ? "+" + (far.length - k) : t.nics[nic] || nic, "nic far");
  });
  for (a = 0; a < total; a++) {
    var spot = at(a, r), gone = a >= t.gpus.length;
    picture.appendChild(svg("circle", { class: "gpu" + (gone ? " gone" : hurt[a] > 1 || (hurt[a] && p.lost.length === 1) ? " hurt" : ""), cx: spot[0], cy: spot[1], r: 15 }));
    picture.appendChild(svg("text", { class: gone ? "gone" : "", x: spot[0], y: spot[1] }, gone ? "×" : String(t.gpus[a]).replace(/^GPU/, "").slice(0, 3)));
  }
  return picture;
}
function links(t, p) {
  var nics = p.nics.slice(0, 24), table = h("table", { class: "links" });
  table.appendChild(h("caption", { class: "sr" }, "How GPUs and NICs are connected"));
  table.appendChild(h("tr", {}, h("th", {}), t.gpus.map(function (g) { return h("th", { scope: "col" }, g.replace(/^GPU/, "G")); }),
    nics.map(function (nic, j) { return h("th", { scope: "col", class: j ? null : "gap", title: t.nics[nic] || "" }, nic.replace(/^NIC/, "N")); })));
  t.gpus.forEach(function (g, a) {
    table.appendChild(h("tr", {}, h("th", { scope: "row" }, g.replace(/^GPU/, "G")),
      t.gpus.map(function (_g, b) { var cell = (p.matrix[a] || [])[b] || ""; return h("td", { class: a === b ? "self" : p.usual && cell !== p.usual ? "lost" : /^NV/.test(cell) ? null : "far" }, a === b ? "·" : cell || "?"); }),
      nics.map(function (_n, j) { var cell = (p.ties[a] || [])[j] || ""; return h("td", { class: (j ? "" : "gap ") + (near(cell) ? "near" : "far"), title: cell + " between " + g + " and " + (t.nics[_n] || _n) }, near(cell) ? cell : cell.slice(0, 1)); })));
  });
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Matrix of links" }, table);
}
function figure(index, nodes, bare) {
  var t = D.topologies[index], p = parse(t), says;
  if (!t.gpus.length) says = h("span", { class: "bad" }, "no GPU topology was read");
  else if (p.missing) says = h("span", { class: "bad" }, plural(p.missing, "GPU") + " missing");
  else if (p.lost.length) says = h("span", { class: "bad" }, plural(p.lost.length, "pair") + " without " + p.usual);
  else says = h("span", { class: "fine" }, p.usual ? p.usual + " between all GPUs" : "no NVLink between GPUs");
  var seen = Object.create(null), apart = p.nics.filter(function (nic, j) { p.ties.forEach(function (row) { if (row[j]) seen[row[j]] = true; }); return t.gpus.length && !p.ties.some(function (row) { return near(row[j]); }); });
  var letters = ["PHB", "NODE", "SYS"].filter(function (word) { return seen[word]; }).map(function (word) { return word.slice(0, 1) + " = " + word; });
  return h("figure", { class: "topo" + (bare ? "" : " panel") },
    h("figcaption", {}, bare ? null : h("b", {}, isAll(nodes) ? "all " + NODES.length + " nodes" : fold(nodes.map(nameOf), 4)), says,
      t.hcas.length ? h("span", { class: "muted" }, plural(t.hcas.length, "HCA")) : null,
      apart.length && apart.length < p.nics.length ? h("span", { class: "muted" }, plural(apart.length, "NIC") + " next to no GPU") : null, letters.length ? h("span", { class: "muted keys" }, letters.join(", ")) : null),
    t.gpus.length ? h("div", { class: "both" }, ring(t, p), links(t, p)) : h("p", { class: "muted" }, t.hcas.length ? "HCAs: " + fold(t.hcas, 6) : ""));
}
function topologies() {
  var users = D.topologies.map(function () { return []; });
  NODES.forEach(function (node, n) { if (node[N.topo] >= 0) users[node[N.topo]].push(n); });
  var list = D.topologies.map(function (t, index) { var p = parse(t); return { index: index, odd: p.missing + p.lost.length + (t.gpus.length ? 0 : .5) }; });
  list.sort(function (a, b) { return (b.odd > 0) - (a.odd > 0) || users[b.index].length - users[a.index].length; });
  var none = NODES.filter(function (node) { return node[N.topo] < 0; }).map(function (node) { return node[N.name]; });
  if (!NODES.length) return;
  var box = h("div", { class: "topos" });
  function show(from, to) { list.slice(from, to).forEach(function (item) { box.appendChild(figure(item.index, users[item.index])); }); }
  show(0, 6);
  add(ui.topos, [h("div", { class: "head" }, h("h2", {}, "Topology"), h("span", { class: "muted" }, list.length === 1 ? (NODES.length > 1 ? "equal on all nodes that were read" : "") : list.length ? plural(list.length, "different picture") + ", odd ones first; nodes that are wired alike share one" : "none was read")), box,
    none.length ? h("p", { class: "why" }, "Not read: " + fold(none, 6)) : null,
    list.length > 6 ? h("button", { class: "link", type: "button", click: function (event) { event.currentTarget.remove(); show(6, 60); } }, "Show " + (Math.min(list.length, 60) - 6) + " more") : null]);
}

/* ---- details ---- */
var opener = null;
function part(v, n) {
  var nodes = where[v.index], others = nodes.filter(function (x) { return x !== n; });
  function block(title, value, box) { return value ? [h("h3", {}, title), h("div", { class: "value" + (box ? " box" : "") }, value)] : null; }
  return h("div", { class: "part" }, h("div", { class: "sub" }, m(mark(v)), h("span", {}, state(v)), v.rank < 9 ? h("span", {}, "severity " + v.severity) : null),
    v.assumed ? h("p", { class: "why" }, "This was concluded from other facts and not looked at itself.") : null,
    block(v.status === "unknown" ? "Why it is unknown" : v.status === "skip" ? "Why it does not apply" : "Observed", v.observed, true), block("Required", v.required, true), block("Why it matters", v.why),
    v.fix ? [h("h3", {}, "How to mend it"), fixView(v.fix, [n])] : null, block("Read from", v.read, true),
    v.source ? [h("h3", {}, "Source of the rule"), h("div", { class: "value" }, link(v.source))] : null,
    others.length ? [h("h3", {}, "The same on"), others.length <= 40 ? h("div", { class: "who" }, others.map(function (x) { return x < 0 ? null : h("button", { class: "node", type: "button", "data-open": x, "data-check": v.check }, nameOf(x)); })) : h("div", { class: "value" }, plural(others.length, "node") + ": " + fold(others.map(nameOf), 8))] : null);
}
function show(n, c) {
  var box = clear(ui.drawer), list = n < 0 ? D.cluster : ROWS[n];
  box.appendChild(h("button", { class: "close", type: "button", click: function () { shut(true); } }, "Close"));
  if (c >= 0) {
    add(box, [h("h2", {}, CHECKS[c][0]), h("div", { class: "sub" }, CHECKS[c][1] ? CHECKS[c][1] + ", on " : "on ", n < 0 ? "the whole cluster" : nodeButton(n))]);
    var found = list.filter(function (v) { return V[v].check === c; });
    found.forEach(function (v) { V[v].index = v; box.appendChild(part(V[v], n)); });
    if (!found.length) box.appendChild(h("p", {}, "This check was not applied to the node."));
  } else if (n >= 0) {
    var node = NODES[n], facts = h("dl", { class: "facts" });
    [["GPUs", node[N.gpus]], ["driver", node[N.driver]], ["kernel", node[N.kernel]], ["address", node[N.address]], ["recorded", node[N.recorded] ? "yes, not live" : "no, live"], ["dressed as", node[N.costume]], ["unreachable", node[N.unreachable]]].forEach(function (item) {
      if (item[1] || item[0] === "GPUs" || item[0] === "driver") add(facts, [h("dt", {}, item[0]), h("dd", {}, item[1] || "not known")]);
    });
    add(box, [h("h2", {}, node[N.name]), h("div", { class: "sub" }, m(node[N.verdict]), node[N.verdict]), facts]);
    var bad = ROWS[n].filter(function (v) { return V[v].rank < 9; }).sort(function (a, b) { return V[a].rank - V[b].rank; });
    add(box, [h("h3", {}, bad.length ? plural(bad.length, "finding") : "Findings"), bad.length ? bad.map(function (v) {
      return h("button", { class: "mini", type: "button", "data-open": n, "data-check": V[v].check }, m(mark(V[v])), h("span", {}, h("span", { class: "mono" }, CHECKS[V[v].check][0]), "  ", h("span", { class: "muted" }, V[v].observed)));
    }) : h("p", { class: "muted" }, "Everything that applies has passed.")]);
    if (node[N.topo] >= 0) add(box, [h("h3", {}, "Topology"), figure(node[N.topo], [n], true)]);
  }
  var opened = box.hidden;
  box.hidden = false; box.scrollTop = 0;
  document.body.classList.add("open");
  if (opened && innerWidth >= 1400) matrix();
  app.querySelectorAll(".cell.at").forEach(function (cell) { cell.classList.remove("at"); });
  var r = order.indexOf(n), column = columns.indexOf(c), cell = r >= 0 && column >= 0 && alive[r] && alive[r].querySelector('[data-c="' + column + '"]');
  if (cell) cell.classList.add("at");
}
function shut(back) {
  if (ui.drawer.hidden) return;
  ui.drawer.hidden = true;
  document.body.classList.remove("open");
  if (innerWidth >= 1400) matrix();
  app.querySelectorAll(".cell.at").forEach(function (cell) { cell.classList.remove("at"); });
  if (history.replaceState) { try { history.replaceState(null, "", "#"); } catch (_e) { location.hash = ""; } }
  if (!back) return;
  if (opener && document.contains(opener)) opener.focus({ preventScroll: true });
  else if (opener && opener.hasAttribute("data-r") && order.length) focusCell(cursor.r, cursor.c);
}
function go(n, c) {
  if (!ui.drawer.contains(document.activeElement)) opener = document.activeElement;
  show(n, c);
  var hash = "#node=" + encodeURIComponent(n < 0 ? "*" : NODES[n][N.name]) + (c >= 0 ? "&check=" + encodeURIComponent(CHECKS[c][0]) : "");
  try { history.replaceState(null, "", hash); } catch (_e) { /* a page from a file may not change its address */ }
  ui.drawer.focus({ preventScroll: true });
}
function fromHash() {
  var wanted = Object.create(null);
  location.hash.slice(1).split("&").forEach(function (pair) { var cut = pair.indexOf("="); if (cut > 0) { try { wanted[pair.slice(0, cut)] = decodeURIComponent(pair.slice(cut + 1)); } catch (_e) { /* not ours */ } } });
  if (wanted.node === undefined) return;
  var n = wanted.node === "*" ? -1 : NODES.findIndex(function (node) { return node[N.name] === wanted.node; });
  var c = CHECKS.findIndex(function (check) { return check[0] === wanted.check; });
  if (n >= 0 || (wanted.node === "*" && c >= 0)) show(n, c);
}
app.addEventListener("click", function (event) {
  var target = event.target.closest("[data-open], .strip [data-node]");
  if (!target) return;
  if (target.hasAttribute("data-node")) { go(+target.getAttribute("data-node"), -1); return; }
  go(+target.getAttribute("data-open"), target.hasAttribute("data-check") ? +target.getAttribute("data-check") : -1);
});
var stripBox = app.querySelector(".strip");
if (stripBox) stripBox.addEventListener("keydown", function (event) {
  var step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], next = step && event.target.closest("[data-node]");
  next = next && (step > 0 ? next.nextElementSibling : next.previousElementSibling);
  if (next) { event.preventDefault(); next.tabIndex = 0; event.target.tabIndex = -1; next.focus(); }
});
document.addEventListener("keydown", function (event) {
  if (event.key === "Escape") { if (!ui.drawer.hidden) shut(true); else if (filtering()) reset(); }
  if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) { event.preventDefault(); ui.q.focus(); }
});
window.addEventListener("hashchange", fromHash);

var timer = 0;
function update() {
  /* Typing must stay fluent at 70,000 findings. */
  clearTimeout(timer);
  timer = setTimeout(render, NODES.length > 200 ? 90 : 0);
}
function render() {
  refresh();
  lists();
  matrix();
  if (stripBox) stripBox.querySelectorAll("[data-node]").forEach(function (button) { button.firstChild.classList.toggle("dim", filtering() && order.indexOf(+button.getAttribute("data-node")) < 0); });
  ui.reset.hidden = !filtering();
  ui.says.textContent = filtering() ? order.length.toLocaleString("en") + " of " + plural(NODES.length, "node") : "";
}
render();
topologies();
fromHash();
app.setAttribute("data-ready", "yes");
})();

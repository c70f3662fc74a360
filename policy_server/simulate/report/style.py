"""The report's style sheet: light and dark, readable in print, no external parts."""

from __future__ import annotations

CSS = """
:root{--bg:#fbfbfa;--card:#fff;--ink:#1c1f23;--soft:#626a73;--rule:#e3e5e8;--grid:#eceef0;
--p0:#1f6feb;--p1:#c77700;--p2:#8250a8;--limit:#1c1f23;--inflight:#2f9e76;--queue:#cf3b3b;
--good:#1a7f4b;--bad:#c0362c}
@media (prefers-color-scheme:dark){:root{--bg:#15181c;--card:#1d2126;--ink:#e8eaed;--soft:#9aa3ad;
--rule:#30363d;--grid:#272c32;--p0:#6ea8fe;--p1:#f0a93b;--p2:#c39be3;--limit:#f4f5f6;
--inflight:#4cc38a;--queue:#ff7b72;--good:#56d08f;--bad:#ff8279}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1120px;padding:28px 20px 60px;background:var(--bg);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:26px;line-height:1.25;margin:0 0 8px}
h2{font-size:19px;margin:38px 0 4px}
p{max-width:78ch;margin:6px 0 12px}
.soft,.unit{color:var(--soft)}
table{border-collapse:collapse;width:100%;margin:10px 0;background:var(--card);
border:1px solid var(--rule);border-radius:8px;font-variant-numeric:tabular-nums}
th,td{padding:6px 8px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th{font-weight:600;color:var(--soft);font-size:13px}
tr:last-child td{border-bottom:0}
tr:nth-child(2) th{text-align:right}
table{font-size:14px}
th.top{text-align:center;color:var(--c);border-left:1px solid var(--rule)}
tr:first-child th{vertical-align:bottom}
th:first-child,td:first-child{text-align:left}
tr.ours td{font-weight:600}
.wrap{overflow-x:auto}
.good{color:var(--good)}.bad{color:var(--bad)}
.bar{display:inline-block;width:64px;height:9px;border-radius:5px;background:var(--grid);
margin-right:8px;overflow:hidden;vertical-align:1px}
.bar i{display:block;height:100%;background:var(--inflight)}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(380px,1fr));gap:14px;
margin-top:10px}
figure{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:8px;
padding:10px 12px 4px}
figcaption{font-size:13px;display:flex;flex-wrap:wrap;gap:4px 12px;align-items:baseline}
figcaption .unit{margin-right:auto}
.key{display:inline-flex;align-items:center;gap:5px;color:var(--soft)}
.key i{width:14px;height:3px;border-radius:2px;background:var(--c)}
svg{width:100%;height:auto;display:block}
path.grid{stroke:var(--grid);stroke-width:1;fill:none}
path.mark{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3;fill:none}
text{font:10.5px system-ui,sans-serif;fill:var(--soft)}
text.tick{text-anchor:end}
text.time{text-anchor:middle}
path.line{stroke:var(--c);stroke-width:1.7;fill:none;stroke-linejoin:round}
path.area{fill:var(--c);opacity:.16}
.P0{--c:var(--p0)}.P1{--c:var(--p1)}.P2{--c:var(--p2)}
.limit{--c:var(--limit)}.inflight{--c:var(--inflight)}.queue{--c:var(--queue)}
details{margin:14px 0}summary{cursor:pointer;color:var(--soft)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px;max-width:90ch}
dt{font-weight:600}dd{margin:0;color:var(--soft)}
@media print{body{max-width:none}figure,table{break-inside:avoid}}
"""

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the README's pictures from what was measured and recorded.

    tools/pictures.py performance docs/internals/measurements/2026-11-22-executor.jsonl > docs/pictures/performance.svg
    tools/pictures.py terminal docs/pictures/quickstart.txt > docs/pictures/quickstart.svg

`performance` reads a log of tools/pairs.py in which a peer ran in turns with ours, takes the median of each figure
over the pairs and draws bars whose lengths are those medians. `terminal` sets a recorded terminal session as text:
lines that begin with "$ " are what was typed.
"""

import json
import statistics
import sys
from xml.sax.saxutils import escape

import program

# A row of bars: what the work is, our figure, and the peers' figures in the same pair of runs.
WORKS = [
    ("a chain of 100,000 nodes", "BM_Chain/1:nodes", "chain/1"),
    ("one node before and after 100,000", "BM_Fan/1:nodes", "fan/1"),
    ("a random graph of 100,000 nodes", "BM_RandomDag/1:nodes", "dag/1"),
]
PEERS = [
    ("hand-written loop over oneTBB's task_group", "dispatch: tbb task_group inline-cheap "),
    ("oneTBB's flow graph", "dispatch: tbb flow_graph "),
]
OURS = "Millrace's executor"
COLOURS = ["#1a6fb5", "#8aa4b8", "#c5cfd8"]
FONT = "font-family=\"'DejaVu Sans',Verdana,sans-serif\""
MONO = "font-family=\"'DejaVu Sans Mono',Menlo,Consolas,monospace\""


def pairs_of(lines):
    """[(figures of A, figures of B)] of the pairs in which A is a peer: it has a figure of PEERS."""
    runs = [json.loads(line) for line in lines if line.strip()]
    pairs = []
    for a, b in zip(runs[::2], runs[1::2]):
        if a["side"] != "A" or b["side"] != "B" or a["pair"] != b["pair"]:
            raise ValueError(f"the log must hold pairs of A and B in turns, got {a['side']} {a['pair']}, {b['side']} {b['pair']}")
        if any(name.startswith(prefix) for name in a["figures"] for _, prefix in PEERS):
            pairs.append((a["figures"], b["figures"]))
    if not pairs:
        raise ValueError("the log must hold runs of a peer in turns with ours, got none")
    return pairs


def medians_of(pairs):
    """[(work, [(who, median)])], ours first."""
    rows = []
    for work, ours, suffix in WORKS:
        bars = [(OURS, statistics.median(b[ours] for _, b in pairs))]
        for who, prefix in PEERS:
            bars.append((who, statistics.median(a[prefix + suffix] for a, _ in pairs)))
        rows.append((work, bars))
    return rows


def svg(width, height, body, title):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">\n'
            f"<title>{escape(title)}</title>\n"
            f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff" stroke="#d5dbe1"/>\n'
            + "\n".join(body) + "\n</svg>\n")


def performance(lines):
    """Bars, millions of nodes a second of one thread."""
    pairs = pairs_of(lines)
    rows = medians_of(pairs)
    left, right, bar, gap = 300, 90, 18, 26
    width = 860
    most = max(value for _, bars in rows for _, value in bars)
    scale = (width - left - right) / most
    title = "Null nodes per second of one thread (millions; longer is better)"
    body = [f'<text x="20" y="32" {FONT} font-size="16" fill="#1b2733">{escape(title)}</text>']
    y = 56
    for work, bars in rows:
        middle = y + bar * len(bars) / 2 + 5
        body.append(f'<text x="{left - 12}" y="{middle:.0f}" {FONT} font-size="13" fill="#1b2733" text-anchor="end">{escape(work)}</text>')
        for (_, value), colour in zip(bars, COLOURS):
            body.append(f'<rect x="{left}" y="{y}" width="{value * scale:.1f}" height="{bar - 3}" fill="{colour}"/>')
            body.append(f'<text x="{left + value * scale + 6:.1f}" y="{y + bar - 6}" {FONT} font-size="12" fill="#1b2733">{value / 1e6:.3g}</text>')
            y += bar
        y += gap
    x = 20
    for (who, _), colour in zip(rows[0][1], COLOURS):
        body.append(f'<rect x="{x}" y="{y - 4}" width="12" height="12" fill="{colour}"/>')
        body.append(f'<text x="{x + 18}" y="{y + 7}" {FONT} font-size="12" fill="#1b2733">{escape(who)}</text>')
        x += 40 + 7 * len(who)
    note = f"Medians of {len(pairs)} pairs of runs in turns on one machine, by tools/pairs.py; docs/performance.md has the rest."
    body.append(f'<text x="20" y="{y + 34}" {FONT} font-size="11" fill="#5b6b7a">{escape(note)}</text>')
    return svg(width, y + 50, body, title)


def terminal(lines, columns=112):
    """Text as a terminal shows it; longer lines go on in the next one, after a word where there is one."""
    rows = []
    for line in lines:
        line = line.rstrip("\n").expandtabs(8)
        typed = line.startswith("$ ")
        while True:
            end = columns
            if len(line) > columns:
                space = line.rfind(" ", columns // 2, columns)
                end = space + 1 if space >= 0 else columns
            rows.append((line[:end], typed))
            line = line[end:]
            if not line:
                break
    height, top = 17, 30
    body = [f'<rect width="{columns * 7.9 + 32:.0f}" height="{len(rows) * height + top + 16}" rx="6" fill="#14202b"/>']
    for number, (text, typed) in enumerate(rows):
        colour = "#8fd18f" if typed else "#dfe7ee"
        body.append(f'<text xml:space="preserve" x="16" y="{top + number * height}" {MONO} font-size="13" fill="{colour}">{escape(text)}</text>')
    return svg(round(columns * 7.9 + 32), len(rows) * height + top + 16, body, "A terminal session")


def main(argv):
    flags = program.Parser(__doc__)
    flags.add_argument("picture", metavar="PICTURE", choices=["performance", "terminal"],
                       help="performance or terminal")
    flags.add_argument("source", metavar="FILE", help="the log or the text")
    args = flags.parse_args(argv[1:])
    try:
        with open(args.source, encoding="utf-8") as source:
            lines = source.readlines()
        sys.stdout.write((performance if args.picture == "performance" else terminal)(lines))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{args.source}: {error}")


if __name__ == "__main__":
    main(sys.argv)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts test cases of one `bazel test`, from its build event file (JSON).

Prints failed cases with the beginnings of what they said, every skipped case with its reason, and `N passed, N failed, N skipped`
as the last line. A target that did not build or left no result counts as one failure.
"""

import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

import program

MOST_TEXTS = 3
MOST_CHARACTERS = 1200


def read_events(path):
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def beginnings(texts):
    """Of the first of them, indented: a log that is cut short must still say what went wrong."""
    lines = []
    for text in texts[:MOST_TEXTS]:
        lines += ["    " + line for line in text.strip()[:MOST_CHARACTERS].splitlines()]
    if len(texts) > MOST_TEXTS:
        lines.append(f"    and {len(texts) - MOST_TEXTS} more")
    return "".join("\n" + line for line in lines)


def last_lines(text):
    return text.strip()[-MOST_CHARACTERS:].splitlines()


def cases_of(xml_path):
    """Yields (name, outcome, text) of each test case in a test.xml."""
    for suite in ElementTree.parse(xml_path).getroot().iter("testsuite"):
        said = suite.findtext("system-out") or ""
        for case in suite.findall("testcase"):
            name = f"{case.get('classname', '')}.{case.get('name', '')}".strip(".")
            bad = case.findall("failure") + case.findall("error")
            skipped = case.find("skipped")
            if bad:
                text = beginnings([b.get("message") or b.text or "" for b in bad])
                # A program that has no cases, or died in one, says nothing but in its last lines.
                yield name, "failed", text + "".join("\n    " + line for line in last_lines(said))
            elif skipped is not None or case.get("result") == "skipped":
                reason = (skipped.get("message") or skipped.text or "") if skipped is not None else ""
                yield name, "skipped", " ".join(reason.split())
            elif case.get("status") == "notrun":
                yield name, "skipped", "switched off (DISABLED_)"
            else:
                yield name, "passed", ""


def main():
    flags = program.Parser(__doc__)
    flags.add_argument("events", metavar="EVENTS", help="of --build_event_json_file")
    flags.add_argument("failures", metavar="FAILURE", nargs="*", default=[], help="what else failed")
    args = flags.parse_args()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failed, skipped = [], []
    seen, expected = set(), set()
    for event in read_events(args.events):
        key = event.get("id", {})
        if "targetConfigured" in key and event.get("configured", {}).get("testSize"):
            expected.add(key["targetConfigured"]["label"])
        if "testResult" not in key or "testResult" not in event:
            continue
        label = key["testResult"]["label"]
        result = event["testResult"]
        seen.add(label)
        xml = [urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
               for output in result.get("testActionOutput", []) if output.get("name") == "test.xml"]
        before_failed = counts["failed"]
        if xml:
            try:
                for name, outcome, text in cases_of(xml[0]):
                    counts[outcome] += 1
                    if outcome == "failed":
                        failed.append(f"{label} {name}{text}")
                    elif outcome == "skipped":
                        skipped.append(f"{label} {name}: {text}")
            except (OSError, ElementTree.ParseError) as error:
                counts["failed"] += 1
                failed.append(f"{label}: its test.xml cannot be read: {error}")
        if result.get("status") not in ("PASSED", "FLAKY") and counts["failed"] == before_failed:
            counts["failed"] += 1
            failed.append(f"{label}: {result.get('status', 'no status')}")
    for label in sorted(expected - seen):
        counts["failed"] += 1
        failed.append(f"{label}: not built or not run")
    for what in args.failures:
        counts["failed"] += 1
        failed.append(what)
    for line in skipped:
        print(f"SKIPPED {line}")
    for line in failed:
        print(f"FAILED {line}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())

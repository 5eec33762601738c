"""Open a page from the disk in a headless Chromium without network: errors of its console, broken images, what it loads.

python asv_benchmarks/browser.py PAGE.html [--screenshot FILE.png]
"""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROBE = """<script>
window.__errors = [];
addEventListener("error", e => window.__errors.push(e.message || ("cannot load " + (e.target.src || e.target.href))), true);
addEventListener("load", () => {
  const found = {
    errors: window.__errors,
    images: [...document.images].map(i => [i.getAttribute("src"), i.naturalWidth]),
    resources: performance.getEntriesByType("resource").map(r => r.name),
    text: document.body.innerText.length,
  };
  const out = document.createElement("script");
  out.type = "application/json"; out.id = "probe"; out.textContent = JSON.stringify(found);
  document.body.appendChild(out);
});
</script>"""


def chromium() -> str | None:
    """The browser's path, None if there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def _run(page: Path, *words: str) -> subprocess.CompletedProcess:
    with tempfile.TemporaryDirectory() as profile:
        return subprocess.run(
            [
                chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync", f"--user-data-dir={profile}",
                "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--virtual-time-budget=5000", *words,
                page.resolve().as_uri(),
            ],
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip


def look(page: Path) -> dict:
    """What the page did: ``errors``, ``images`` (source, width), ``resources`` (addresses), ``text`` (characters shown), ``console``."""
    probed = page.with_name(f".probe-{os.getpid()}.html")
    text = page.read_text(encoding="utf-8")
    probed.write_text(text.replace("<head>", "<head>" + PROBE, 1), encoding="utf-8")
    try:
        done = _run(probed, "--dump-dom")
    finally:
        probed.unlink()
    found = re.search(r'<script type="application/json" id="probe">(.*?)</script>', done.stdout, re.S)
    if not found:
        raise RuntimeError(f"the browser gave no page back (code {done.returncode}): {done.stderr[-1500:]}")
    console = re.findall(r"CONSOLE.*", done.stderr)
    return {**json.loads(html.unescape(found[1])), "console": console}


def faults(report: dict) -> list[str]:
    """Sentences on what is wrong with a page."""
    out = [f"error: {e}" for e in (*report["errors"], *report["console"])]
    out += [f"broken image: {source}" for source, width in report["images"] if not width]
    out += [
        f"not from the disk: {address}" for address in report["resources"] if not address.startswith(("file:", "data:"))
    ]
    if not report["text"]:
        out.append("nothing is shown")
    return out


def screenshot(page: Path, picture: Path, width: int = 1200, height: int = 2000) -> None:
    """A picture of the page."""
    _run(page, f"--screenshot={picture.resolve()}", f"--window-size={width},{height}", "--hide-scrollbars")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--screenshot", type=Path)
    a = parser.parse_args()
    if chromium() is None:
        print("not looked at: no chromium is installed")
        return 0
    report = look(a.page)
    if a.screenshot:
        screenshot(a.page, a.screenshot)
    wrong = faults(report)
    print("\n".join(wrong) or f"{a.page}: {len(report['images'])} images, no error, nothing from the network")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

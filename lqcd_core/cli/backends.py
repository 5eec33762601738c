"""``lqcd backends``: every backend with its answer to a request."""

from __future__ import annotations

import click

from .program import DONE, LQCDCommand
from .screen import as_json, facts, table
from .settings import LATTICE, Assignment, backend_choice


@click.command("backends", cls=LQCDCommand)
@click.option("--verbose", "-v", is_flag=True, help="Facts about the machine, options, origin, plugins left out.")
@click.option("--json", is_flag=True, help="Machine-readable output.")
@click.option("--operator", default="wilson", help="Ask for this operator: wilson, clover, twisted_mass, ...")
@click.option("--precision", default="double", help="Ask for this precision: double, single, half, bf16, fixed16.")
@click.option("--lattice", type=LATTICE, default="8x4x4x4", help="Ask for this lattice.")
@click.option("--nc", type=int, default=3, help="Ask for this number of colours.")
@click.option("--n-rhs", type=int, default=12, help="Ask for this many right-hand sides together.")
@click.option("--feature", "features", multiple=True, help="Ask for a feature (may be repeated).")
@click.option("--backend", help="Name one, as a script would.")
@click.option(
    "--option", "options", type=Assignment(), multiple=True, help="Option of the backend that --backend names."
)
def command(verbose, json, operator, precision, lattice, nc, n_rhs, features, backend, options):
    """Which backends are installed, what they can do, and which would serve a request.

    A backend that cannot serve says why. Candidates are started to learn whether this machine can run them.
    """
    from ..backend import FEATURES, make_request
    from ..errors import refuse_unknown
    from ..geometry import LatticeGeometry
    from ..registry import REGISTRY
    from ..selection import explain_request

    refuse_unknown(features, FEATURES, "a request")
    request = make_request(operator, precision, LatticeGeometry.from_shape(lattice, nc=nc), n_rhs, features)
    explanation = explain_request(request, backend_choice(backend, options), start_all=True)
    records = REGISTRY.records()
    answers = dict(explanation.rows)
    details = {name: _details(REGISTRY, records[name], dict(options) if name == backend else {}) for name in answers}
    if json:
        as_json({
            "request": str(request), "chosen": explanation.chosen, "broken": dict(REGISTRY.broken),
            "backends": [{"name": n, "answer": a, **_record(records[n]), "facts": details[n]} for n, a in answers.items()],
        })  # fmt: skip
        return DONE
    rows, styles = [], []
    for name, answer in answers.items():
        info = records[name]
        rows.append((name, info.device, ", ".join(_precisions(info)), answer, info.summary))
        styles.append("bold" if name == explanation.chosen else "" if answer.startswith("can serve") else "dim")
    table(
        f"Asked for: {request}", ("backend", "device", "precisions", "answer", "what it is"), rows, styles
    )  # fmt: skip
    if verbose:
        for name in answers:
            info = records[name]
            pairs = [
                ("origin", info.origin), ("loads", info.load), ("rank", info.rank),
                ("operators", ", ".join(sorted(info.operators))), ("features", ", ".join(sorted(info.features)) or "none"),
                ("arrays", ", ".join(sorted(info.arrays))), ("wraps another", "yes" if info.wraps else "no"),
                *((f"fact {k}", v) for k, v in details[name].items()),
                *((f"option {k}", f"{o.help} (default {o.default!r})") for k, o in sorted(info.options.items())),
                *((f"preset {k}", v) for k, v in sorted(info.preset.items())),
            ]  # fmt: skip
            print(name)
            facts((f"  {a}", b) for a, b in pairs)
            print()
        print("plugins left out" if REGISTRY.broken else "plugins left out: none")
        facts((f"  {name}", reason) for name, reason in REGISTRY.broken.items())
    elif REGISTRY.broken:
        print(f"{len(REGISTRY.broken)} plugin(s) left out; 'lqcd backends -v' says why.")
    return DONE


def _precisions(info) -> list[str]:
    from ..precision import PRECISIONS

    return [p for p in PRECISIONS if p in info.precisions]


def _record(info) -> dict:
    return {
        "origin": info.origin, "device": info.device, "rank": info.rank, "precisions": _precisions(info),
        "operators": sorted(info.operators), "features": sorted(info.features), "arrays": sorted(info.arrays),
        "wraps": info.wraps, "summary": info.summary,
        "options": {k: {"help": o.help, "default": o.default} for k, o in info.options.items()},
    }  # fmt: skip


def _details(registry, info, options) -> dict:
    """What a backend that starts here says of the machine; nothing for one that does not."""
    from ..errors import LQCDError

    try:
        describe = getattr(registry.load(info.name, options).instance, "describe", None)
    except LQCDError as error:
        return {"does not start": str(error)}
    return dict(describe()) if callable(describe) else {}

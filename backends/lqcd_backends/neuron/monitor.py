"""The vendor's monitor stream (``neuron-monitor``, one JSON document a line) as readings for ``lqcd monitor``.

Every key may be missing: tools of different ages leave out different ones, and a section that failed holds only ``error``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from lqcd_core.cli.readings import Reading

_ECC = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")


def read(line: str) -> Reading | None:
    """The reading of one line; None if the line is no such document.

    Examples
    --------
    >>> line = '{"neuron_runtime_data": [{"report": {"neuroncore_counters": {"neuroncores_in_use": '
    >>> line += '{"0": {"neuroncore_utilization": 42.5}}}}}]}'
    >>> dict(read(line).cores)
    {'0': 42.5}
    """
    try:
        document = json.loads(line)
    except ValueError:
        return None
    if not isinstance(document, dict) or not document.keys() & {
        "neuron_runtime_data",
        "system_data",
        "neuron_hardware_info",
    }:
        return None
    cores: dict[str, float] = {}
    memory: dict[str, int] = {}
    errors: dict[str, int] = {}
    latencies: dict[str, dict[str, float]] = {}
    remarks: list[str] = []
    runtimes = [r for r in _list(document.get("neuron_runtime_data")) if isinstance(r, dict)]
    for runtime in runtimes:
        mark = f"pid {runtime['pid']} " if len(runtimes) > 1 and "pid" in runtime else ""
        if runtime.get("error"):
            remarks.append(f"{mark}{runtime['error']}")
        report = _dict(runtime.get("report"))
        remarks += [
            f"{mark}{name}: {_dict(part)['error']}" for name, part in report.items() if _dict(part).get("error")
        ]
        used = _dict(_dict(report.get("neuroncore_counters")).get("neuroncores_in_use"))
        for core, what in used.items():
            value = _number(_dict(what).get("neuroncore_utilization"))
            if value is not None:
                cores[core] = value
        stats = _dict(report.get("execution_stats"))
        for section in ("error_summary", "execution_summary"):
            for kind, value in _numbers(stats.get(section)):
                if kind != "completed":
                    errors[kind] = errors.get(kind, 0) + int(value)
        for name, times in _dict(stats.get("latency_stats")).items():
            found = dict(_numbers(times))
            if found:
                latencies[mark + name.replace("_", " ")] = found
        held = _dict(_dict(report.get("memory_used")).get("neuron_runtime_used_bytes"))
        for name in ("host", "neuron_device"):
            value = _number(held.get(name))
            if value is not None:
                key = {"host": "host", "neuron_device": "device"}[name]
                memory[key] = memory.get(key, 0) + int(value)
        for core, parts in _dict(_dict(held.get("usage_breakdown")).get("neuroncore_memory_usage")).items():
            values = [value for _, value in _numbers(parts)]
            if values:
                memory[f"core {core}"] = int(sum(values))
    hardware = _dict(_dict(document.get("system_data")).get("neuron_hw_counters"))
    for chip in _list(hardware.get("neuron_devices")):
        for kind in _ECC:
            value = _number(_dict(chip).get(kind))
            if value:
                errors[kind] = errors.get(kind, 0) + int(value)
    ordered = dict(sorted(cores.items(), key=lambda pair: (len(pair[0]), pair[0])))
    return Reading(
        title=_title(document), cores=ordered, memory=memory, errors=errors, latencies=latencies, remarks=tuple(remarks)
    )


def _title(document: dict) -> str:
    instance, chip = _dict(document.get("instance_info")), _dict(document.get("neuron_hardware_info"))
    words = [instance.get("instance_type"), chip.get("neuron_device_type")]
    if chip.get("neuron_device_count"):
        words.append(f"{chip['neuron_device_count']} chip(s)")
    return ", ".join(str(w) for w in words if w)


def _dict(value: Any) -> dict:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if fine else None


def _numbers(value: Any) -> Iterator[tuple[str, float]]:
    for name, v in _dict(value).items():
        if _number(v) is not None:
            yield name, v


__all__ = ["read"]

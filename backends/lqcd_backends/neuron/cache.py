"""Compiled artefacts on disk, for every Neuron backend: keyed, atomic, safe for several processes.

An entry is a folder named by the digest of its key. It appears whole, by one rename of a folder made beside it, so a
reader sees all of it or nothing. A lock per key (``flock``, released by the system when its holder dies) keeps two
processes from compiling one thing twice, and tells the work of a living process from what a killed one left, which goes
with the next compilation. ``entry.json`` holds the key in full and a digest of every file; an entry whose
files do not match is put away and made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lqcd_core.errors import FileError
from lqcd_core.io.unfinished import locked, remove_unfinished

VARIABLE = "LQCD_NEURON_CACHE"
"""Environment variable that names the folder."""
RECORD = "entry.json"


def cache_root() -> Path:
    """``$LQCD_NEURON_CACHE``, else ``$XDG_CACHE_HOME/lqcd/neuron``, else ``~/.cache/lqcd/neuron``."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "lqcd" / "neuron"


def key_digest(key: Mapping[str, Any]) -> str:
    """blake2b (160 bits, hex) of a key written as canonical JSON.

    >>> key_digest({"a": 1, "b": 2}) == key_digest({"b": 2, "a": 1})
    True
    """
    text = json.dumps(key, sort_keys=True, separators=(",", ":"), allow_nan=True)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


class Cache:
    """The cache of one backend.

    Parameters
    ----------
    kind
        Subfolder, one per backend (``traced``, ``nki``).
    root
        Folder; None for :func:`cache_root`.
    """

    def __init__(self, kind: str, root: str | os.PathLike | None = None):
        self.folder = Path(root) / kind if root is not None else cache_root() / kind

    def fetch(self, key: Mapping[str, Any], build: Callable[[Path], None]) -> tuple[Path, bool]:
        """(folder of the entry, True if it was there). ``build(folder)`` fills a new one.

        Whatever ``build`` raises passes through and leaves nothing behind. An entry that is there is found in a folder
        that cannot be written to.

        Raises
        ------
        FileError
            If the entry is not there and the folder cannot be written to.
        """
        digest = key_digest(key)
        final = self.folder / digest
        if self._whole(final, key):
            return final, True
        with writable("cache of compiled graphs", self.folder, f"let {VARIABLE} name a folder that can be written to"):
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()  # said before minutes of compilation
        remove_unfinished(self.folder)  # of processes that were killed while they compiled
        with locked(self.folder, digest):
            if self._whole(final, key):
                return final, True
            work = Path(tempfile.mkdtemp(prefix=f".{digest}.", dir=self.folder))
            try:
                build(work)
                files = {p.name: _file_digest(p) for p in sorted(work.iterdir())}
                record = {"key": dict(key), "files": files, "created": time.time()}
                (work / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True))
                if final.exists():  # damaged: _whole said so
                    shutil.rmtree(final)
                os.replace(work, final)
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                raise
        return final, False

    def entries(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """(folder, key) of every entry, as their records say; :meth:`is_whole` checks one."""
        for record in sorted(self.folder.glob(f"[!.]*/{RECORD}")):
            try:
                yield record.parent, dict(json.loads(record.read_text())["key"])
            except (OSError, ValueError, KeyError, TypeError):
                continue

    def is_whole(self, folder: Path, key: Mapping[str, Any]) -> bool:
        """True if a folder holds the entry of this key with every file as it was written."""
        return self._whole(folder, key)

    def _whole(self, folder: Path, key: Mapping[str, Any]) -> bool:
        try:
            record = json.loads((folder / RECORD).read_text())
            if key_digest(record["key"]) != key_digest(key):
                return False
            return all(_file_digest(folder / name) == digest for name, digest in record["files"].items())
        except (OSError, ValueError, KeyError, AttributeError):
            return False


@contextmanager
def writable(what: str, folder: Path, remedy: str) -> Iterator[None]:
    """What the system says of a folder inside the block becomes a FileError that says whose folder it is, and a remedy."""
    try:
        yield
    except OSError as error:
        raise FileError(f"the {what} {folder} cannot be written to ({error.strerror or error}); {remedy}.") from error


def _file_digest(path: Path) -> str:
    h = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as f:
        while piece := f.read(1 << 22):
            h.update(piece)
    return h.hexdigest()


__all__ = ["VARIABLE", "Cache", "cache_root", "key_digest", "writable"]

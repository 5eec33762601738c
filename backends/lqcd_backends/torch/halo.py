r"""The hopping term of a slab of time slices, with half-spinor faces in place of the neighbours in t.

.. math:: \text{to the slab before: } h = \psi_u - Q_t\psi_l \text{ of the first slice},\qquad
          \text{to the slab after: } r = W^\dagger(\psi_u + Q_t\psi_l) \text{ of the last slice}

A face is four real planes ``(n, 4, Nc, Z Y X)`` in the arithmetic's type: half of a spinor. Slices are computed whole and
in the order of :mod:`.hopping`, so cutting a lattice changes no bits.
"""

from __future__ import annotations

import threading

import numpy as np
import torch

from lqcd_core.backend import Handle

from .hopping import HoppingKernel, Task, _HalfSpinors, _Planes, _Spinor, link_views, plan
from .space import TorchSpace


class SlabHop(HoppingKernel):
    """See the module; a :class:`~lqcd_core.backend.HaloHop`. Arguments as for :class:`~.hopping.HoppingKernel`.

    With ``dagger`` it is H^dagger; with ``start`` the result is (start - H psi), as there.
    """

    def __init__(
        self,
        space: TorchSpace,
        here,
        there,
        even_x,
        chunk: int | None,
        local: threading.local,
        dagger=False,
        start=None,
    ):
        super().__init__(here.detach(), there.detach(), space.sites, even_x, space.real, chunk, local)
        self.dagger, self.start = dagger, start
        self.sigma = {True: 1.0 if dagger else -1.0, False: -1.0 if dagger else 1.0}  # by task.forward
        self.slices = space.sites[0]
        self.slice_sites = space.volume // self.slices

    def faces(self, x: Handle) -> tuple[np.ndarray, np.ndarray]:
        n, sites, last = x.shape[0], self.slice_sites, (self.slices - 1) * self.slice_sites
        down, up = (torch.empty((n, 4, self.nc, sites), dtype=self.real, device=x.device) for _ in range(2))
        at_once = max(1, min(n, (self.chunk or self._budget(x.device)) // sites))
        adjoint = Task(0, False, last, last, last, sites, None)
        links = link_views(self._links(adjoint), False) if self.there.dtype == self.real else None
        with torch.no_grad():
            for c in range(0, n, at_once):
                columns = slice(c, min(c + at_once, n))
                work = self._half_spinors(columns.stop - c, sites)
                self._project(self._slice(x[columns], 0), 0, self.sigma[True], work.h)
                down[columns] = work.h.all
                self._project(self._slice(x[columns], last), 0, self.sigma[False], work.h)
                self._multiply(adjoint, links, work, work.h)
                up[columns] = work.r.all
        return down.cpu().numpy(), up.cpu().numpy()

    def interior(self, x: Handle) -> torch.Tensor:
        out = torch.empty_like(x)
        if self.slices > 2:
            self._compute(x, out, (1, self.slices - 1), None, None)
        return out

    def exterior(self, x: Handle, partial: torch.Tensor, below: np.ndarray, above: np.ndarray) -> Handle:
        below, above = (torch.from_numpy(face).to(x.device) for face in (below, above))
        for times in sorted({(0, 1), (self.slices - 1, self.slices)}):
            self._compute(x, partial, times, below, above)
        return partial

    def _slice(self, x: torch.Tensor, first: int) -> _Spinor:
        return _Spinor(x.narrow(3, first, self.slice_sites).to(self.real))

    def _compute(self, psi: torch.Tensor, result: torch.Tensor, times: tuple[int, int], below, above) -> None:
        """H psi on some slices, written into ``result``."""
        n, budget = psi.shape[0], self.chunk or self._budget(psi.device)
        blocks = self._slab_plan(times, budget)
        at_once = max(1, min(n, budget // blocks[0][1]))
        with torch.no_grad():
            for first, count, tasks in blocks:
                for c in range(0, n, at_once):
                    columns = slice(c, min(c + at_once, n))
                    source, block, out = psi[columns], *self._block_buffers(columns.stop - c, count)
                    block.all.copy_(source.narrow(3, first, count))
                    if self.start is not None:
                        self.start(columns, first, block.all, out.all)
                    for task, links in tasks:
                        if task.face:
                            face = (above if task.forward else below)[columns]
                            self._face_task(task, links, face, out, first)
                        else:
                            self._task(task, links, source, block, out, first, self.dagger, self.start is None)
                    result[columns].narrow(3, first, count).copy_(out.all)

    def _slab_plan(self, times: tuple[int, int], budget: int) -> list:
        key = (times, budget)
        if key not in self.plans:
            same = self.here.dtype == self.real
            self.plans[key] = [
                (first, count, [(k, link_views(self._links(k), k.forward) if same else None) for k in tasks])
                for first, count, tasks in plan(self.sites, budget, times)
            ]
        return self.plans[key]

    def _face_task(self, task: Task, links, face: torch.Tensor, out: _Spinor, first: int) -> None:
        """Add a hop that comes out of a face: multiplied here if forward, by the sender if backward."""
        half = _Planes(face.narrow(3, task.source, task.sites))
        if task.forward:
            work: _HalfSpinors = self._half_spinors(face.shape[0], task.sites)
            self._multiply(task, links, work, half)
            half = work.r
        self._add(task, self.sigma[task.forward], half, out, first, self.start is None)

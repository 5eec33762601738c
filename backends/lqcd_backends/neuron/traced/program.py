r"""Programs: which stages make M, M^dagger, M^dagger M, the hops and the Schur complements, and with which weights.

.. math:: M = A - H,\quad M^\dagger = A^\dagger - H^\dagger,\quad
          \hat M = A_p - H_{pq}A_q^{-1}H_{qp}\ \text{or}\ 1 - A_p^{-1}H_{pq}A_q^{-1}H_{qp}
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import torch

from lqcd_core.backend import DiracTerms, Links, SiteDiagonal
from lqcd_core.geometry import FULL, LatticeGeometry

from .graph import Chain, Stage, Term, as_term, link_weight, mask_weight

ONE = Term()


@attrs.frozen(eq=False)
class Program:
    """A chain of stages and the makers of its weights."""

    kind: str
    """For people: ``H``, ``M``, ``schur``, ..."""
    geometry: LatticeGeometry
    """The lattice."""
    parity: int | None
    """Parity of the result (and of what enters, unless the chain is one hop)."""
    chain: Chain
    """What is computed."""
    weights: dict[str, Callable[[], torch.Tensor]]
    """Makers by name."""

    @property
    def hops(self) -> int:
        """Number of hopping terms."""
        return sum(stage.hop for group in self.chain for stage in group)


def hop_program(links: Links, parity, formulation: str, storage: str) -> Program:
    """H, on the full lattice or landing on one parity."""
    chain = ((Stage(parity=parity),),)
    name = "H" if parity is FULL else f"H to parity {parity}"
    return Program(name, links.geometry, parity, chain, _link_weights(links, chain, formulation, storage))


def site_program(term: SiteDiagonal, geometry: LatticeGeometry, parity) -> Program:
    """A alone."""
    weights: dict = {}
    chain = ((Stage(hop=False, parity=parity, centre=as_term(term, "a", weights)),),)
    return Program("A", geometry, parity, chain, weights)


def dirac_program(kind: str, terms: DiracTerms, formulation: str, storage: str) -> Program:
    """One of ``lqcd_core.backend.FUSED_KINDS``."""
    weights: dict = {}
    if kind in ("M", "Mdag", "MdagM"):
        parity = FULL
        forward = (Stage(centre=as_term(terms.diagonal, "a", weights)),)
        # A^dagger is A unless there is a twist (or blocks that are not Hermitian): one weight serves both then.
        same = _hermitian(terms.diagonal)
        adjoint = terms.diagonal if same else terms.diagonal.dagger()
        if kind == "M":
            chain: Chain = (forward,)
        else:
            back = (Stage(dagger=True, centre=as_term(adjoint, "a" if same else "a_dag", weights)),)
            chain = (back,) if kind == "Mdag" else (forward, back)
    else:
        parity = terms.parity
        groups = {"schur": (False,), "schur_dag": (True,), "schur_normal": (False, True)}[kind]
        chain = tuple(_schur(terms, dagger, weights) for dagger in groups)
    used = {t.name for group in chain for s in group for t in (s.after, s.centre) if t is not None and t.name}
    weights = {name: make for name, make in weights.items() if name in used}
    weights.update(_link_weights(terms.links, chain, formulation, storage))
    return Program(kind, terms.links.geometry, parity, chain, weights)


def _hermitian(term: SiteDiagonal) -> bool:
    return bool(term.hermitian_blocks and not term.twist and not np.imag(term.scalar))


def _schur(terms: DiracTerms, dagger: bool, weights: dict) -> tuple[Stage, ...]:
    g, p, q = terms.links.geometry, terms.parity, 1 - terms.parity
    a = {k: terms.diagonal.on_parity(g, k) for k in (p, q)}
    mark = "_dag" if dagger and not _hermitian(terms.diagonal) else ""

    def term(which: SiteDiagonal, name: str) -> Term:
        return as_term(which.dagger() if mark else which, name + mark, weights)

    to_q = Stage(dagger=dagger, parity=q, after=term(a[q].inverse(), "inverse_q"))
    if terms.form == "asymmetric":
        return to_q, Stage(dagger=dagger, parity=p, centre=term(a[p], "a_p"), of_input=True)
    inverse_p = term(a[p].inverse(), "inverse_p")
    if dagger:
        first = Stage(hop=False, parity=p, centre=inverse_p)
        return first, to_q, Stage(dagger=True, parity=p, centre=ONE, of_input=True)
    return to_q, Stage(parity=p, after=inverse_p, centre=ONE, of_input=True)


def _link_weights(links: Links, chain: Chain, formulation: str, storage: str) -> dict:
    weights: dict = {}
    for parity in {stage.parity for group in chain for stage in group if stage.hop}:
        if parity is FULL:
            weights["links"] = lambda: link_weight(links, FULL, formulation, storage)
        else:
            weights[f"links{parity}"] = lambda parity=parity: link_weight(links, parity, formulation, storage)
            weights[f"even_x{parity}"] = lambda parity=parity: mask_weight(links.geometry, parity)
    return weights


__all__ = ["Program", "dirac_program", "hop_program", "site_program"]

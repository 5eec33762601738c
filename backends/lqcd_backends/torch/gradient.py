r"""Gradients of the linear maps of the backend.

With torch's convention (the gradient of a real L with respect to a complex z is :math:`\partial L/\partial\,{\rm Re} z +
i\,\partial L/\partial\,{\rm Im} z`), :math:`y = A x` gives :math:`g_x = A^\dagger g_y`, and H is a sum of
:math:`R\,W P\psi` with P the projection to a half spinor and :math:`R = P^T` on real planes, so

.. math:: g_W(x)_{ab} = \sum_{s} (P_- g)(x)_{sa}\,\overline{(P_-\psi)(x+\hat\mu)}_{sb}
              + (P_+\psi)(x)_{sa}\,\overline{(P_+ g)(x+\hat\mu)}_{sb}

The factor 1/2, the coefficient and the boundary phase are folded into W before, by operations autograd knows.
Every backward is made of differentiable operations: second derivatives exist.
"""

from __future__ import annotations

import torch

from .hopping import GROUPS, HoppingKernel


class Linear(torch.autograd.Function):
    """A fixed linear map with its adjoint: functions of planes that return new planes."""

    @staticmethod
    def forward(ctx, x, forward, adjoint):
        ctx.forward_map, ctx.adjoint_map = forward, adjoint
        with torch.no_grad():
            return forward(x)

    @staticmethod
    def backward(ctx, g):
        return Linear.apply(g, ctx.adjoint_map, ctx.forward_map), None, None


class Hop(torch.autograd.Function):
    """H with gradients for psi and for the links: ``(psi, here, there, kernels, dagger)``.

    ``kernels`` is the pair (the map, the map between the same sites in the other direction).
    """

    @staticmethod
    def forward(ctx, psi, here, there, kernels, dagger):
        ctx.save_for_backward(psi, here, there)
        ctx.kernels, ctx.dagger = kernels, dagger
        return kernels[0](psi, dagger)

    @staticmethod
    def backward(ctx, g):
        psi, here, there = ctx.saved_tensors
        kernel, mate = ctx.kernels
        grads: list[torch.Tensor | None] = [None] * 5
        if ctx.needs_input_grad[0]:
            grads[0] = Hop.apply(g, there, here, (mate, kernel), not ctx.dagger)
        for k, links, forward in ((1, here, True), (2, there, False)):
            if ctx.needs_input_grad[k]:
                landing = kernel if forward else mate
                gradients = [_link_gradient(mu, psi, g, landing, forward, ctx.dagger) for mu in range(4)]
                grads[k] = torch.stack(gradients).to(links.dtype)
        return tuple(grads)


def _link_gradient(mu: int, psi, g, landing: HoppingKernel, forward: bool, dagger: bool) -> torch.Tensor:
    """g_W of one direction as planes ``(2, Nc, Nc, sites)``, from the forward or from the backward hops."""
    sigma = -1.0 if forward != dagger else 1.0
    left, right = (g, psi) if forward else (psi, g)
    left, right = _project(mu, left, sigma), shift_forward(_project(mu, right, sigma), mu, landing)
    left, right = (v.unflatten(1, (2, 2)) for v in (left, right))
    (a_re, a_im), (b_re, b_im) = ((v[:, :, 0], v[:, :, 1]) for v in (left, right))
    product = "nsax,nsbx->abx"
    re = torch.einsum(product, a_re, b_re) + torch.einsum(product, a_im, b_im)
    im = torch.einsum(product, a_im, b_re) - torch.einsum(product, a_re, b_im)
    return torch.stack([re, im])


def _project(mu: int, psi: torch.Tensor, sigma: float) -> torch.Tensor:
    """h = psi_u + sigma Q psi_l, planes ``(n, 4, Nc, sites)``, out of place."""
    rows: list = [None] * 4
    for upper, lower, sign in GROUPS[mu]:
        for k, l in zip(range(8)[upper], range(8)[lower], strict=True):
            rows[k] = psi[:, k] + (sigma * sign) * psi[:, l]
    return torch.stack(rows, dim=1)


def shift_forward(v: torch.Tensor, mu: int, landing: HoppingKernel) -> torch.Tensor:
    """v(x + mu) at the sites where ``landing`` writes, out of place."""
    full = v.reshape(*v.shape[:-1], *landing.sites)
    moved = torch.roll(full, -1, dims=mu - 4).reshape(v.shape)
    return moved if landing.even_x is None or mu != 3 else torch.where(landing.even_x, v, moved)

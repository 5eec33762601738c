r"""The site-diagonal term on real planes: :math:`A = s + B(x) + i\mu\gamma_5`.

Per site and Nc = 3 with blocks: two 6x6 complex matrices, 576 multiply-adds; 576 bytes of blocks in single precision.
"""

from __future__ import annotations

import torch

from lqcd_core.backend import SiteDiagonal

from .space import COMPLEX, PIECE, TorchSpace, as_tensor


class SiteTerm:
    """A on the sites of a space, for planes of the arithmetic's type, without gradients."""

    def __init__(self, term: SiteDiagonal, space: TorchSpace):
        self.nc, self.volume = space.geometry.nc, space.volume
        self.real = space.real
        self.on_cpu = space.device.type == "cpu"
        self.factors = [complex(term.scalar) + 1j * sign * float(term.twist) for sign in (1, -1)]
        self.columns = None
        if term.blocks is not None:
            with torch.no_grad():
                self.columns = self._columns(full_blocks(term, space).detach(), space)

    def _columns(self, blocks: torch.Tensor, space: TorchSpace) -> torch.Tensor:
        """Blocks ``(T, Z, Y, X, 2, 2Nc, 2Nc)`` as planes ``(column, re/im, chirality, spin, 1, colour, sites)``."""
        nc = self.nc
        pairs = torch.view_as_real(blocks.to(COMPLEX[space.real])).reshape(self.volume, 2, 2, nc, 2 * nc, 2)
        return pairs.permute(4, 5, 1, 2, 3, 0).unsqueeze(4).contiguous()

    def __call__(self, psi: torch.Tensor, out: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Write A psi to ``out``, both planes ``(n, 8, Nc, sites)`` of consecutive sites from ``first`` on."""
        if self.columns is None:
            self._scalars(psi, out)
            return out
        count = psi.shape[-1]
        width = max(64, PIECE // psi.shape[0]) if self.on_cpu else count
        for start in range(0, count, width):
            number = min(width, count - start)
            x, y = psi.narrow(3, start, number), out.narrow(3, start, number)
            self._blocks(x, y, self.columns.narrow(-1, first + start, number))
        return out

    def new(self, psi: torch.Tensor) -> torch.Tensor:
        """A psi, new planes of the arithmetic's type."""
        psi = psi.to(self.real)
        return self(psi, torch.empty(psi.shape, dtype=self.real, device=psi.device))

    def _scalars(self, x, y) -> None:
        if self.factors[0] == self.factors[1] and not self.factors[0].imag:
            torch.mul(x, self.factors[0].real, out=y)
            return
        for planes, f in zip((slice(0, 4), slice(4, 8)), self.factors, strict=True):
            v, w = x[:, planes], y[:, planes]
            torch.mul(v, f.real, out=w)
            w[:, 0::2].add_(v[:, 1::2], alpha=-f.imag)
            w[:, 1::2].add_(v[:, 0::2], alpha=f.imag)

    def _blocks(self, x, y, columns) -> None:
        shape = (x.shape[0], 2, 2, 2, self.nc, x.shape[-1])  # column, chirality, spin, re/im, colour, site
        v, w = x.unflatten(1, (2, 2, 2)), y.unflatten(1, (2, 2, 2))
        assert w.shape == shape
        w_re, w_im = w[:, :, :, 0], w[:, :, :, 1]
        for j, (re, im) in enumerate(columns):
            part = v[:, :, j // self.nc, :, j % self.nc]  # (n, chirality, re/im, sites)
            one = part[:, :, None, :, None]
            if j == 0:
                torch.mul(re, one, out=w)
            else:
                w.addcmul_(re, one)
            im = im.squeeze(2)
            w_re.addcmul_(im, part[:, :, 1, None, None], value=-1)
            w_im.addcmul_(im, part[:, :, 0, None, None])


def full_blocks(term: SiteDiagonal, space: TorchSpace) -> torch.Tensor:
    """s + B + i mu gamma5 as one tensor of blocks, differentiable with respect to B."""
    blocks = as_tensor(term.blocks, space.device)
    blocks = blocks.to(torch.promote_types(blocks.dtype, torch.complex64))
    signs = torch.tensor([1.0, -1.0], dtype=blocks.real.dtype, device=space.device)
    eye = torch.eye(blocks.shape[-1], dtype=blocks.dtype, device=space.device)
    return blocks + (complex(term.scalar) + 1j * float(term.twist) * signs)[:, None, None] * eye


def differentiable(term: SiteDiagonal, space: TorchSpace):
    """x -> A x by plain operations, with gradients for x and for the blocks."""
    blocks = full_blocks(term, space).to(COMPLEX[space.real])

    def apply(x):
        psi = space.to_array(x)
        halves = psi.reshape(*psi.shape[:-2], 2, -1, 1)
        return space.pack((blocks @ halves).reshape(psi.shape))

    return apply

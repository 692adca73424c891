"""How exactly matrices are multiplied."""

import jax


def matmul_precision() -> str:
    """Give the precision of matrix products: as JAX is configured, by default the highest.

    On GPUs since Ampere and on TPUs JAX's own default multiplies float32 matrices in TF32 or
    bfloat16, with errors of a thousandth: enough to spoil the energy differences that an HMC
    proposal is accepted by. ``jax.config.update("jax_default_matmul_precision", "tensorfloat32")``
    chooses speed instead; what was chosen is recorded with the draws.
    """
    chosen: str | None = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return chosen or "highest"

"""What searches have found for the same model and rows, kept among the caches of the user."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from bnn_ppl.data.streams.streams import Stream, fingerprint
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.compilation.program_parts import program_digest
from bnn_ppl.runtime.files import cache_folder, make_folder, package_state, replace_file
from bnn_ppl.storage.files import read_json, sealed

Programs: TypeAlias = list[str | None]


class SearchCache(NamedTuple):
    """The place of what a search finds; None where it cannot be known again."""

    place: Path | None

    @classmethod
    def of(
        cls, posteriors: Sequence[Posterior], *settings: Any, programs: Programs | None = None
    ) -> "SearchCache":
        """Name it by the programs of some posteriors, their rows, and the settings.

        `programs` are those of :func:`programs_of`, where they are known.

        Results of another version of this package are not used. Like the compiled programs, they
        are kept unless ``jax_enable_compilation_cache`` is off.
        """
        off = not jax.config.values["jax_enable_compilation_cache"]
        if off or jax.process_count() > 1 or any(map(_is_open, posteriors)):
            return cls(None)
        programs = programs_of(posteriors) if programs is None else programs
        about = [package_state(), jax.__version__, jax.default_backend(), programs, settings]
        if None in programs:
            return cls(None)
        try:
            text = json.dumps(about)
        except TypeError:  # settings that are no plain numbers and texts
            return cls(None)
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        folder = _folder()
        return cls(None if folder is None else folder / f"{digest}.json")

    def read(self) -> Any:
        """Give what was found, None if nothing was."""
        if self.place is not None:
            with suppress(OSError, ValueError):  # missing or damaged
                return read_json(self.place)["found"]
        return None

    def write(self, found: Any) -> None:
        """Keep what was found, where the folder can be written."""
        if self.place is not None:
            with suppress(OSError):
                make_folder(self.place.parent)
                replace_file(self.place, json.dumps(sealed({"found": found})).encode())


def _folder() -> Path | None:
    with suppress(RuntimeError):  # a user without a home
        return cache_folder() / "searches"
    return None


def _is_open(posterior: Posterior) -> bool:
    """Whether its log-density follows from more than the model and rows in memory."""
    return isinstance(posterior.data, Stream) or bool(posterior.sites.points)


def programs_of(posteriors: Sequence[Posterior]) -> Programs:
    """Hash rows, and the programs of log-densities and of where chains start.

    None stands for a program that cannot be known again.
    """
    return [program for posterior in posteriors for program in _programs(posterior)]


def _programs(posterior: Posterior) -> Programs:
    key, batch = jax.random.key(0), posterior.rows.full_batch
    position = jax.eval_shape(posterior.init, key)
    density = program_digest(posterior.logdensity, position, batch)
    start = program_digest(posterior.init, key)
    return [jnp.zeros(()).dtype.name, fingerprint(posterior.data), density, start]
